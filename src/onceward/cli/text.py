r"""Words for people, without the packages that draw: what is spelled out, counted, measured and said.

Invariant: nothing that came from a message, a database or the network reaches the terminal with a control character or
an escape sequence in it; each is shown as text (`\x1b`) instead. Whatever prints data prints it through `visible`.
"""

from __future__ import annotations

import unicodedata

import click

from onceward.domain.text import ago, count, span

__all__ = ["ago", "count", "examples", "say", "span", "visible"]

# Controls, invisible and direction-changing characters, half characters, and line breaks that are not newlines.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(value: object, *, lines: bool = False) -> str:
    """Text with every control or invisible character spelled out; `lines` keeps line breaks and tabs."""
    kept = "\n\t" if lines else ""
    return "".join(_spelled(character, kept) for character in str(value))


def _spelled(character: str, kept: str) -> str:
    if character in kept or unicodedata.category(character) not in _HIDDEN:
        return character
    number = ord(character)
    if number > 0xFFFF:  # noqa: PLR2004 - the end of the first plane
        return f"\\U{number:08x}"
    return f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}"  # noqa: PLR2004 - one byte


def examples(*lines: str) -> str:
    """The end of a command's help. The first line tells click to leave the others as they are."""
    return "\b\nExamples:\n" + "".join(f"  {line}\n" for line in lines)


def say(text: str = "", *, error: bool = False) -> None:
    """Print a sentence of ours; data in it is made visible."""
    click.echo(visible(text, lines=True), err=error)
