"""An app of Django's, with models."""
