"""Engines: the contract, and a load with faults, on each database server that onceward says it runs on.

`load.py` makes the messages and judges what came of them, `postgres.py` and `failover.py` are the engines; another one
is a function that answers a `Report`, and a line in `ENGINES` of `__main__.py`.
"""
