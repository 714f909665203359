"""Real processes that die at every point, and what must be true afterwards."""
