"""A shop on FastAPI and async SQLAlchemy."""
