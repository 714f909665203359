"""The tool of `make mutation`."""
