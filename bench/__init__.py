"""Benchmarks: onceward beside the limit and beside its peers, on the same machine, in the same run, with durable settings."""
