"""The demo: a shop, its senders, and what goes wrong around them."""
