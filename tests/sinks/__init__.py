"""Where the relay publishes: one contract for every broker, on real servers."""
