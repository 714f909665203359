"""One vocabulary: docs/glossary.md says what things are called; words that it has replaced do not come back.

Looked at are the names that code defines and those of SQL statements, and every text that people read: documentation,
docstrings, messages and pages. Comments are the writer's own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onceward"

REPLACED = {
    *("beware", "wary", "suspect", "suspects", "solo", "gate", "careful", "floor", "sweep", "ride", "rides", "armed"),
    *("bell", "ringer", "presence", "goodbye", "gather", "gathering", "desk", "entrance", "chore", "chores", "upkeep"),
    *("trial", "rehearsal", "rehearse", "pace", "sight", "sighting", "lightened", "draft", "story", "survey"),
    *("laboratory", "taps", "judge", "disturbance", "noted"),
}
"""Parts of names that had another word's meaning."""
REPLACED_NAMES = {"go_on", "make_point", "hand_over", "take_back", "put_away", "turn_page", "try_", "say_goodbye"}
ORDINARY = {"testing/recorder.py": {"noted", "_noted_caller"}}
"""Names that use such a word as everybody does, by file."""

PERSONS = re.compile(r"\b(nobody|somebody|whoever|anybody|everybody)\b", re.IGNORECASE)
GENERATED = {ROOT / "docs" / "proof.md"}
"""Made from the records of runs, with the names that the variants had then."""


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that a module defines, and where."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def is_replaced(name: str) -> bool:
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return name.strip("_") in REPLACED_NAMES or bool(parts & REPLACED)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def of_sql(text: str) -> set[str]:
    """The names of statements, and every word of them but comments, texts and functions: tables, columns, aliases."""
    said = set(re.findall(r"^-- name: (\w+)$", text, re.MULTILINE))
    own = re.sub(r"--.*|'[^']*'", "", text)  # settings of the database are quoted
    return said | set(re.findall(r"\b[a-z]\w*\b(?!\()", own))


def test_replaced_names_do_not_come_back() -> None:
    found = [
        f"{file}:{line}: {name}"
        for file, tree in trees().items()
        for line, name in defined(tree)
        if is_replaced(name) and name not in ORDINARY.get(file, ())
    ]
    for path in sorted((PACKAGE / "stores").rglob("*.sql")):
        found += [f"{path.name}: {name}" for name in of_sql(path.read_text()) if is_replaced(name)]
    assert not found, "see docs/glossary.md:\n" + "\n".join(found)
    assert of_sql("-- name: claim\nSELECT floor(seq) AS floor -- sweep") >= {"claim", "seq", "floor"}
    assert "sweep" not in of_sql("SELECT 1 -- sweep")
    assert is_replaced("GatheringPlace")
    assert is_replaced("_go_on")
    assert not is_replaced("aggregate")


def test_texts_name_who_acts() -> None:
    found = [
        f"{file}:{line}: {person[0]}"
        for file, tree in trees().items()
        for line, text in texts(tree)
        for person in PERSONS.finditer(text)
    ]
    pages = [*PACKAGE.rglob("*.html"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for path in sorted({*pages} - GENERATED):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{line}: {person[0]}" for person in PERSONS.finditer(text)]
    assert not found, "name the worker, the operator, the sender:\n" + "\n".join(found)
