"""Where large bodies are kept (R10): files or an S3-compatible store."""
