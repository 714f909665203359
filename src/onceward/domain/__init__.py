"""The words of the inbox: pure values and decisions, no I/O."""
