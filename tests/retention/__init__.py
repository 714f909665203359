"""Retention: tables that stay small, and nothing that is still needed goes with what is not."""
