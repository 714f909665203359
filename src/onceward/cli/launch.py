"""How this command line was started: what starts it again, and which inbox it is about when none is named.

`onceward` is started as such; a program with a command line of its own, such as Django's `manage.py`, passes a `Launch`
as click's `obj`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import click


@dataclass(frozen=True, slots=True)
class Launch:
    """What was typed, in two parts."""

    command: Callable[[], list[str]] = lambda: [sys.executable, "-m", "onceward"]
    """What starts it again;"""
    words: list[str] = field(default_factory=lambda: sys.argv[1:])
    """and what comes after that."""
    inbox: Callable[[], str | None] = lambda: None
    """The inbox that commands are about when none is named, as MODULE:ATTR."""

    @classmethod
    def current(cls) -> Launch:
        """That of the command that is running."""
        context = click.get_current_context(silent=True)
        return (context and context.find_object(cls)) or cls()
