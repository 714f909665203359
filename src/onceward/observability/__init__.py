"""Metrics, spans and what comes with them."""
