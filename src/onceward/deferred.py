"""Modules that a program may never need, imported when something of them is first used.

A process that only receives or handles messages starts without what is for looking, steering, webhooks, brokers and
archives. Beside each `Deferred` stands the import itself, under TYPE_CHECKING, for whoever checks types and directions.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Deferred:
    """Stands for a module of the package until something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = f"onceward.{name}"

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
