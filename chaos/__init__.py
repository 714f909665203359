"""Chaos: real processes on a real database, faults all the while, and a verifier that counts what came of it.

`load.py` makes the messages, `service.py` is the service under test, `program.py` its processes, `nemesis.py` the
faults, `verifier.py` the verdict, `world.py` puts them together for one store.
"""
