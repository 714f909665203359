r"""Words for people, without the packages that draw: what is spelled out, counted, measured and said.

Invariant: nothing that came from a message, a database or the network reaches the terminal with a control character or
an escape sequence in it; each is shown as text (`\x1b`) instead. Whatever prints data prints it through `visible`.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

import click

# Controls, invisible and direction-changing characters, half characters, and line breaks that are not newlines.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


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


def span(seconds: float, *, units: int = 2) -> str:
    """A duration for people: two units at most.

    >>> span(0.25), span(59), span(3725), span(200_000)
    ('0.2 s', '59 s', '1 h 2 min', '2 d 7 h')
    """
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth matters
        return f"{seconds:.1f} s"
    parts = []
    rest = int(seconds)
    for size, name in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:units])


def ago(moment: datetime | None, *, units: int = 2) -> str:
    """How long ago something was, or in how long it will be."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"{span(seconds, units=units)} ago" if seconds >= 0 else f"in {span(-seconds, units=units)}"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 message, 2 messages."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
