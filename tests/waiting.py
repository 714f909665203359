"""Waiting for a condition, as the shipped suites do."""

from onceward.testing.waiting import PAUSE, TIMEOUT, wait_until, wait_until_async

__all__ = ["PAUSE", "TIMEOUT", "wait_until", "wait_until_async"]
