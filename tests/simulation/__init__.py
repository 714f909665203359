"""The simulation in the everyday run: a sample of seeds, its own checker, and a few mutants."""
