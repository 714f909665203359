"""A shop on Django: Stripe's webhook, orders and their messages in one commit, and a worker beside the web server.

    pip install 'onceward[standard,django]'
    python manage.py migrate                        # SHOP_DATABASE=postgresql://... for PostgreSQL
    python manage.py runserver                      # SHOP_STRIPE_SECRET=whsec_..., Stripe's secret of this endpoint
    python manage.py onceward run                   # the worker: a process of its own
    python manage.py onceward status

`POST /orders` stores an order, and a message in the same commit; its handler confirms the order. Stripe's
`checkout.session.completed` comes to `POST /hooks/stripe`; its handler books the payment, once, however often Stripe
sends the event and whichever process dies. The columns `confirmations` and `payments` count how often that happened.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    execute_from_command_line(sys.argv)
