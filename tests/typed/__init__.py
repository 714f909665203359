"""Typed messages: models, annotations, type checkers."""
