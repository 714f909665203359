"""A shop on Flask and SQLAlchemy."""
