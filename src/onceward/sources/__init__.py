"""Where messages come from: brokers, each one file, opened by URL."""
