"""Engines: the contract, and a load with faults, on each database server that onceward says it runs on.

`cases.py` says which cases of the tests are played on each; `load.py` makes the messages and says what came of them,
and the other modules start the servers and kill them. Another engine is its cases, a function that returns a `Report`,
and a line in `ENGINES` of `__main__.py`.
"""
