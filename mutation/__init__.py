"""Mutation testing by a tool: small changes of code and SQL that nobody chose, and the tests that must notice them.

`change.py` is one change, `python.py` and `sql.py` find all of them in a file, `rooms.py` says which files and tests
belong together, `covered.py` which test runs which line (`witness.py` is its plugin), `outcome.py` plays one, `kept.py`
has what was found before (`state.py`: on which code), `__main__.py` plays a sample. The mutants that were written for
one promise each are in `mutants`; its player plays these too.
"""
