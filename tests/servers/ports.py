"""Ports for private servers, as the shipped suites have them."""

from onceward.testing.ports import free_port

__all__ = ["free_port"]
