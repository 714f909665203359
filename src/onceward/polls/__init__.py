"""APIs that are polled for messages."""
