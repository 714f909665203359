"""What a piece of code is, in few words, and how much of it has changed since.

A record keeps this about the code that it measured: history may be rewritten, and a commit that is gone cannot be
compared with anything. The digest tells whether the code is the same. The sample is one in 64 of its different lines,
chosen by their own hashes, so that the same lines are chosen again tomorrow: the share of the sample that is gone is the
share of the lines that have changed, within a few hundredths. A line that moves to another file has not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
KINDS = (".py", ".sql", ".lua")
ONE_IN = 64


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of some files and folders."""

    digest: str
    sample: str
    """Hashes of lines, in order, with a space between them."""


def fingerprint(rooms: Sequence[str], root: Path = ROOT) -> Fingerprint:
    """Of what these files and folders are now."""
    whole, lines = hashlib.sha256(), set[bytes]()
    for path in _files(rooms, root):
        content = path.read_bytes()
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(content).digest())
        lines.update(line.strip() for line in content.splitlines())
    hashes = (hashlib.sha256(line).hexdigest() for line in lines if line)
    chosen = sorted(one[:6] for one in hashes if int(one[-4:], 16) % ONE_IN == 0)
    return Fingerprint(whole.hexdigest()[:16], " ".join(chosen))


def changed(then: str, now: str) -> float:
    """The share of the lines, 0 to 1, that one of two samples has and the other has not."""
    old, new = set(then.split()), set(now.split())
    larger = max(len(old), len(new))
    return 1 - len(old & new) / larger if larger else 0.0


def _files(rooms: Sequence[str], root: Path) -> Iterator[Path]:
    for room in rooms:
        place = root / room
        found = [place] if place.is_file() else sorted(path for path in place.rglob("*") if _counts(path, root))
        if not found:
            raise FileNotFoundError(f"{room} has no code: proof/records.py names it as what a record measures")
        yield from found


def _counts(path: Path, root: Path) -> bool:
    """Whether it is code of this repository, and not of an environment that is installed in one of its folders."""
    return path.suffix in KINDS and not any(part.startswith(".") for part in path.relative_to(root).parts)
