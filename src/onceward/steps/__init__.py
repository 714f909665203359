"""The pattern itself: receive, claim, handle, settle, and what operators do. Generators without I/O; see `flow.py`."""
