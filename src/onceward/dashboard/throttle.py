"""Slowing down addresses that guess secrets, without locking out the operator whose name they use.

Invariant: wrong secrets from an address slow down that address, for that name, and no others. So that many addresses
do not guess many times as fast, all failures together have a limit too; beyond it, only addresses from which the right
secret has come before are listened to. What is remembered has a limited size.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict, deque
from typing import Any

FREE_FAILURES = 5
LONGEST_LOCK = 300.0
FAILURES_A_MINUTE = 60
"""Of all addresses together."""
REMEMBERED = 10_000

Guess = tuple[str, str]
"""An address and a name."""


class Throttle:
    """Who may try a secret now."""

    def __init__(self) -> None:
        self._failures: OrderedDict[Guess, tuple[int, float]] = OrderedDict()
        self._trusted: OrderedDict[Guess, None] = OrderedDict()
        self._latest: deque[float] = deque(maxlen=FAILURES_A_MINUTE)
        self._lock = threading.Lock()

    def may_try(self, address: str, name: str) -> bool:
        """Whether a secret for this name is looked at when it comes from this address."""
        guess = (network(address), name)
        with self._lock:
            _, locked_until = self._failures.get(guess, (0, 0.0))
            if time.monotonic() < locked_until:
                return False
            return guess in self._trusted or not self._are_too_many()

    def failed(self, address: str, name: str) -> None:
        """It was wrong."""
        guess = (network(address), name)
        with self._lock:
            failures = self._failures.pop(guess, (0, 0.0))[0] + 1
            beyond = max(0, failures - FREE_FAILURES)
            pause = min(LONGEST_LOCK, 2.0 ** min(beyond, 30)) if beyond else 0.0
            self._failures[guess] = (failures, time.monotonic() + pause)
            _shorten(self._failures)
            self._latest.append(time.monotonic())

    def succeeded(self, address: str, name: str) -> None:
        """It was right."""
        guess = (network(address), name)
        with self._lock:
            self._failures.pop(guess, None)
            self._trusted[guess] = None
            self._trusted.move_to_end(guess)
            _shorten(self._trusted)

    def _are_too_many(self) -> bool:
        return len(self._latest) == FAILURES_A_MINUTE and time.monotonic() - self._latest[0] < 60  # noqa: PLR2004


def network(address: str) -> str:
    """What one sender has of addresses: one of IPv4, the first 64 bits of IPv6.

    >>> network("192.0.2.7"), network("2001:db8::7:1"), network("unknown")
    ('192.0.2.7', '2001:db8::/64', 'unknown')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))  # noqa: PLR2004


def _shorten(remembered: OrderedDict[Guess, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
