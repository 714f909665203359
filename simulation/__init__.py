"""A deterministic simulation: the real steps over the real SQL, under a seeded scheduler that injects faults."""
