"""One small change of a file."""

from __future__ import annotations

from dataclasses import dataclass

from mutants.mutant import Mutant


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """What stands between two bytes of a file, and what stands there instead."""

    file: str
    """Relative to `src/onceward`."""
    start: int
    end: int
    new: str
    kind: str
    line: int
    statement: int = 0
    """The line on which the statement begins."""
    section: str = ""
    """Of an SQL file: the name of the statement."""

    def mutant(self, source: bytes) -> Mutant:
        """As the player wants it: with so much around it that it stands in the file once."""
        start, end = source.rfind(b"\n", 0, self.start) + 1, _line_end(source, self.end)
        while source.count(source[start:end]) > 1:
            start, end = source.rfind(b"\n", 0, max(start - 1, 0)) + 1, _line_end(source, end)
        old = source[start:end].decode()
        new = (source[start : self.start] + self.new.encode() + source[self.end : end]).decode()
        return Mutant(str(self), self.file, old, new, test="")

    def shown(self, source: bytes) -> str:
        """Before and after, in a line."""
        before, after = source[self.start : self.end].decode(), self.new
        return f"{' '.join(before.split()) or '(nothing)'} -> {' '.join(after.split()) or '(nothing)'}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}"


def _line_end(source: bytes, position: int) -> int:
    found = source.find(b"\n", position)
    return len(source) if found < 0 else found + 1
