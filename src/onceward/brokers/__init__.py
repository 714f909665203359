"""Message brokers, one module each with both directions; `protocol.py` defines what a broker must do."""
