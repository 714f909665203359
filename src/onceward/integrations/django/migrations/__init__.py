"""Our migrations as Django's: one module for each, of the same name, with the same SQL (`tables.py`)."""
