"""The changes of an SQL file: conditions that are left out or turned round, locks and conflicts that are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutation.change import Change

_SECTION = re.compile(rb"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(rb"--[^\n]*")
_CONDITION = re.compile(rb"\b(?:WHERE|AND|OR|ON|WHEN|HAVING|NOT)\b")
_TERM = re.compile(rb"^[ ]*AND [^\n]*?(?=;?$)", re.MULTILINE)
_ANYWHERE: tuple[tuple[bytes, str, str], ...] = (
    (rb"\bFOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?", "", "lock removed"),
    (rb"\bFOR (?:KEY )?SHARE(?: OF \w+)?(?: SKIP LOCKED)?", "", "lock removed"),
    (rb" SKIP LOCKED", "", "lock removed"),
    (rb"ON CONFLICT (?:\([^)]*\) )?DO NOTHING", "", "conflict removed"),
    (rb" DESC\b", "", "order"),
    (rb"\bIS NOT NULL\b", "IS NULL", "comparison"),
    (rb"\bIS NULL\b", "IS NOT NULL", "comparison"),
    (rb"\bNOT EXISTS\b", "EXISTS", "condition negated"),
    (rb"(?<!NOT )\bEXISTS\b", "NOT EXISTS", "condition negated"),
    (rb"\bmin\(", "max(", "aggregate"),
    (rb"\bmax\(", "min(", "aggregate"),
)
_IN_CONDITIONS: tuple[tuple[bytes, str, str], ...] = (
    (rb"(?<= )<=(?= )", "<", "comparison"),
    (rb"(?<= )<(?= )", "<=", "comparison"),
    (rb"(?<= )>=(?= )", ">", "comparison"),
    (rb"(?<= )>(?= )", ">=", "comparison"),
    (rb"(?<= )<>(?= )", "=", "comparison"),
    (rb"(?<= )=(?= )", "<>", "comparison"),
    (rb"(?<=[^\n ] )AND(?= )", "OR", "and/or"),
)


def changes(file: str, source: bytes) -> list[Change]:
    """All of them, in the order of the file."""
    return sorted(set(_found(file, source)))


def _found(file: str, source: bytes) -> Iterator[Change]:
    # Comments become spaces, so that what is found has its place in the file.
    bare = _COMMENT.sub(lambda comment: b" " * len(comment[0]), source)
    names = [*_SECTION.finditer(source)]
    for name, following in zip(names, [*names[1:], None], strict=True):
        start, end = name.end(), following.start() if following else len(source)
        for first, last, new, kind in _of_section(bare, start, end):
            yield Change(file, first, last, new, kind, source.count(b"\n", 0, first) + 1, section=name[1].decode())


def _of_section(bare: bytes, start: int, end: int) -> Iterator[tuple[int, int, str, str]]:
    for term in _TERM.finditer(bare, start, end):
        if term[0].count(b"(") == term[0].count(b")"):
            yield term.start(), term.end(), "", "condition removed"
    for pattern, new, kind in _ANYWHERE:
        for found in re.compile(pattern).finditer(bare, start, end):
            yield found.start(), found.end(), new, kind
    for pattern, new, kind in _IN_CONDITIONS:
        for found in re.compile(pattern).finditer(bare, start, end):
            line = bare.rfind(b"\n", 0, found.start()) + 1
            if _CONDITION.search(bare, line, found.start()):
                yield found.start(), found.end(), new, kind
