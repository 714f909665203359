"""A shop on Django: orders, Stripe's webhook, a worker; `manage.py` runs all of it."""
