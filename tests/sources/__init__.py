"""Brokers: one contract for all of them, on real servers."""
