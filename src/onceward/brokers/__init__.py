"""What the sources and sinks of a broker share."""
