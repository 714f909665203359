"""Every command that a page names exists, with the options that it is given, also in blocks that are not run (R69)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from onceward.cli.app import application
from tests.pages.reader import ROOT, read
from tests.pages.runner import commands

PATHS = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts)]
_INLINE = re.compile(r"`onceward ([a-z-]+(?: [^`]*)?)`")
_END = re.compile(r"\s(?:\||&|;|>|&&|\|\|)(?:\s|$)")


def named(text: str) -> Iterator[str]:
    """What follows `onceward` in sentences."""
    yield from (
        found[1] for found in _INLINE.finditer(re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    )


def given(path: Path) -> Iterator[str]:
    """What follows `onceward` on a page, in blocks and in sentences."""
    for block in read(path).blocks:
        if block.language == "console":
            lines = (line for line, _ in commands(block.text))
            yield from (line.removeprefix("onceward ") for line in lines if line.startswith("onceward "))
    yield from named(path.read_text())


def wrong(words: str) -> str | None:
    """What of a command line does not exist."""
    parts = shlex.split(_END.split(f"{words} ")[0], comments=True)
    context, command = click.Context(application), None
    group: click.Command = application
    while parts and isinstance(group, click.Group):
        command = group.get_command(context, parts.pop(0))
        if command is None:
            return f"onceward {words}: no such command"
        group = command
    assert command is not None
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    unknown = [part for part in parts if part.startswith("--") and part.split("=")[0] not in known]
    return f"onceward {words}: no {unknown}" if unknown else None


def test_commands_and_their_options_exist() -> None:
    found = {str(path.relative_to(ROOT)): [one for one in map(wrong, given(path)) if one] for path in PATHS}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_does_not_exist_is_found() -> None:
    assert wrong("migrate shop:inbox --sql") == "onceward migrate shop:inbox --sql: no ['--sql']"
    assert wrong("nothing") == "onceward nothing: no such command"
    assert wrong("effects list --limit 3 | jq .") is None
