"""Reads a page: its code blocks, each with what the comment before it says about running it.

A block is run unless the comment on the line before it says why not:

    <!-- test: file=shop.py -->              the block is a file, put there before what follows
    <!-- test: needs a Kubernetes cluster -->  the block is not run, for this reason
    <!-- test: exit=1 -->                    the command ends with this exit code

and anywhere on the page, for all of it:

    <!-- page: stores=sqlite,postgresql given=shop -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = {"python", "console"}
"""Languages that are run; `sh` and `bash` are not used, so that a command and its output look alike everywhere."""
FILES = {"toml", "ini", "yaml", "json", "dockerfile", "sql", "html", "text", "nginx", "diff", "mermaid", ""}
"""Languages that are checked for their form at most, unless they are a file that what follows uses."""

ASIDE = {"decisions", "reference", ".venv"}

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)[^\n]*$")
_ONE = re.compile(r"<!-- test: (.+?) -->")
_PAGE = re.compile(r"<!-- page: (.+?) -->")
_NAMED = re.compile(r"(file|exit)=(\S+)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One code block."""

    line: int
    language: str
    text: str
    file: str | None = None
    exit: int = 0
    reason: str | None = None
    """Why it is not run."""


@dataclass(slots=True)
class Page:
    """A page, and on what its blocks are run."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    stores: list[str] = field(default_factory=lambda: ["sqlite"])
    given: list[str] = field(default_factory=list)
    """Programs of `tests/pages/given` whose names the blocks use without defining them."""

    @property
    def name(self) -> str:
        """As it stands in the name of a test."""
        return str(self.path.relative_to(ROOT))

    @property
    def runs(self) -> bool:
        """Whether anything of it is run."""
        return any(block.language in RUN and not block.reason for block in self.blocks)


def read(path: Path) -> Page:
    """A page with its blocks."""
    text = path.read_text()
    page = Page(path)
    if found := _PAGE.search(text):
        for word in found[1].split():
            name, _, value = word.partition("=")
            assert name in ("stores", "given"), f"{page.name}: unknown {word!r}"
            setattr(page, name, value.split(","))
    page.blocks = _blocks(text.splitlines())
    return page


def _blocks(lines: list[str]) -> list[Block]:
    found, mark, number = [], "", 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if not fence:
            if lines[number].strip():
                mark = note[1] if (note := _ONE.search(lines[number])) else ""
            number += 1
            continue
        start, indent = number + 1, len(fence["indent"])
        number = next(n for n in range(start, len(lines)) if lines[n].strip() == "```")
        body = "".join(f"{line[indent:]}\n" for line in lines[start:number])
        found.append(_block(start, fence["language"], body, mark))
        mark, number = "", number + 1
    return found


def _block(line: int, language: str, body: str, mark: str) -> Block:
    if not mark:
        return Block(line, language, body)
    named = _NAMED.match(mark)
    if named and named[1] == "file":
        return Block(line, language, body, file=named[2])
    if named:
        return Block(line, language, body, exit=int(named[2]))
    return Block(line, language, body, reason=mark)


def pages() -> list[Page]:
    """README and every page of the documentation, but for decisions, which tell what was, and what is made of code."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [read(path) for path in paths if not ASIDE & set(path.relative_to(ROOT).parts)]
