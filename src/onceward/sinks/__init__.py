"""Destinations of outgoing messages that are not brokers; `brokers/protocol.py` defines what a sink must do."""
