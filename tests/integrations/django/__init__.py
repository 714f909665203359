"""`onceward.integrations.django` with the real Django, on real databases."""
