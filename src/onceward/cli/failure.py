"""How a command ends when it cannot do what it was asked: a sentence for people, an exit code for scripts."""

from __future__ import annotations

import click

from onceward.cli.text import visible

NOT_SO = 1
"""Nothing matched, or a check failed."""
WRONG_USAGE = 2
"""Wrong usage or configuration."""
UNAVAILABLE = 3
"""The database cannot be used."""


class Failure(click.ClickException):
    """Ends the command; what the sentence quotes from data is made visible."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(visible(message, lines=True))
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click reads it only
        """The exit code of the process."""
        return self._code
