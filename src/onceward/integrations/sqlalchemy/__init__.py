"""SQLAlchemy 2: handlers that get a Session or Connection, and callers who have one of their own.

`handlers.py` is found by the annotation of a handler, `callers.py` by what is passed as `tx=`; neither is imported by
hand. Alembic is beside them: `onceward.integrations.alembic`.
"""
