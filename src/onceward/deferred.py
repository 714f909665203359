"""Modules of Python that a program may never need, imported when something of them is first used.

A program without event loops starts without `asyncio`, whose import takes as long as everything else together.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Deferred", "asyncio", "futures", "hashlib", "signal", "socket"]


class Deferred:
    """Stands for a module, and keeps what was wanted of it: the next use costs no more than the module's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import asyncio
    import hashlib
    import signal
    import socket
    from concurrent import futures
else:
    asyncio, futures, hashlib, signal, socket = map(
        Deferred, ("asyncio", "concurrent.futures", "hashlib", "signal", "socket")
    )
