"""docs/claims.md says the truth: every claim and mistake is there, and every test it links to exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"

CLAIMS = {f"C{number:02}" for number in range(1, 52)}
MISTAKES = {
    f"M{number:02}"
    for first, last in [(1, 11), (20, 32), (40, 44), (50, 61), (70, 81)]
    for number in range(first, last + 1)
}
_ROW = re.compile(r"^\| ([CM]\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_TESTS = ("../tests/", "../src/onceward/testing/store_suite/", "../src/onceward/testing/broker_suite/")


def rows(page: str) -> dict[str, str]:
    """What the page says for each number; the last column, where the proof or the answer stands."""
    found = _ROW.findall(page)
    twice = [number for number, times in Counter(number for number, _, _ in found).items() if times > 1]
    assert not twice, f"more than once on the page: {twice}"
    return {number: answer for number, _, answer in found}


def broken(page: str) -> list[str]:
    """Links that lead nowhere: a file that is not there, or a test that is not in it."""
    found = []
    for words, target in _LINK.findall(page):
        if target.startswith(("#", "https://")):
            continue
        path = (PAGE.parent / target).resolve()
        if not path.is_file():
            found.append(f"{target}: no such file")
        elif target.startswith(_TESTS) and f"test_{words.replace(' ', '_')}" not in functions(path):
            found.append(f"{target}: no test named {words!r}")
    return found


@cache
def functions(path: Path) -> set[str]:
    """The names of all functions of a file, also those in classes."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def without_test(page: str) -> set[str]:
    """Claims that no test is linked to."""
    return {
        number
        for number, answer in rows(page).items()
        if number in CLAIMS and not any(target.startswith(_TESTS) for _, target in _LINK.findall(answer))
    }


def unanswered(page: str) -> set[str]:
    """Mistakes whose answer leads nowhere that could be looked at."""
    return {
        number
        for number, answer in rows(page).items()
        if number in MISTAKES and not any(not target.startswith("#") for _, target in _LINK.findall(answer))
    }


def test_every_claim_and_every_mistake_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert rows(page).keys() == CLAIMS | MISTAKES
    assert f"{len(CLAIMS)} claims" in page
    assert f"{len(MISTAKES)} mistakes" in page


def test_every_claim_has_a_test_and_every_mistake_an_answer() -> None:
    page = PAGE.read_text()
    assert without_test(page) == set()
    assert unanswered(page) == set()


def test_every_link_leads_somewhere() -> None:
    assert broken(PAGE.read_text()) == []
    assert "](claims.md)" in (PAGE.parent / "guarantees.md").read_text()


def test_the_rules_see_what_they_should() -> None:
    """Each is shown a page that is wrong."""
    this = "../tests/test_claims_page.py"
    good = f"| C01 | it works | [the rules see what they should]({this}) |\n"
    assert (broken(good), without_test(good)) == ([], set())
    assert broken(good.replace("the rules see", "no rule sees")) == [
        f"{this}: no test named 'no rule sees what they should'"
    ]
    assert broken(good.replace("claims_page", "nothing"))[0].endswith("no such file")
    assert without_test("| C01 | it works | [guarantees](guarantees.md) |\n") == {"C01"}
    assert unanswered("| M01 | it does not work | see [not yet](#not-yet) |\n") == {"M01"}
