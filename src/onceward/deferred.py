"""Modules that a program may never need, imported when something of them is first used.

A process that only receives or handles messages starts without what is for looking, steering, webhooks, brokers and
archives; one without event loops starts without `asyncio`, whose import takes as long as everything else together.
Beside each `Deferred` stands the import itself, under TYPE_CHECKING, for whoever checks types and directions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Deferred", "asyncio", "futures", "hashlib", "signal", "socket"]


class Deferred:
    """Stands for a module of the package until something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = f"onceward.{name}"

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


class DeferredStandard(Deferred):
    """Stands for a module of Python, and keeps what was wanted of it: the next use costs no more than the module's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = super().__getattr__(attribute)
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
        DeferredStandard, ("asyncio", "concurrent.futures", "hashlib", "signal", "socket")
    )
