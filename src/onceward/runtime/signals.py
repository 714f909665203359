"""Stopping by signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onceward.deferred import signal


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop gracefully on SIGTERM and SIGINT, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
