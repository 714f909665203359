"""Adapters of other queues. They run in `bench/.venv`, where onceward is not; `bench/lineup.py` starts them."""
