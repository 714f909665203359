"""The code of README and documentation, run as it stands. How to mark a block: `reader.py`."""
