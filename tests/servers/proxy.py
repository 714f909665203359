"""The fault proxy, as the shipped suites have it."""

from onceward.testing.proxy import FaultProxy

__all__ = ["FaultProxy"]
