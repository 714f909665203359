"""Benchmarks: onceward beside the textbook inbox, on the same machine, in the same run, with durable settings."""
