"""Webhooks: authentic events are stored once, and nothing else leaves a trace."""
