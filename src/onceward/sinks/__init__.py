"""Where outgoing messages go: `protocol.py` says what a sink must be; one file per kind."""
