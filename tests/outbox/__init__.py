"""The outbox, its relay and sinks, guarded effects, and what flows from message to message (R25 to R28)."""
