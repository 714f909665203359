"""The table of brokers says what the last recorded run of their contracts says, and that run was of these contracts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from proof.brokers import BROKERS, BROKERS_PAGE, record, with_table

TESTS = Path(__file__).parent


def cases(folder: str, fixture: str) -> set[str]:
    """The tests of a folder that run for every broker."""
    found = set()
    for path in (TESTS / folder).glob("test_contract*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                wanted = {argument.arg for argument in node.args.args}
                found |= {node.name} if fixture in wanted else set()
    return found


def test_the_table_is_made_from_the_record() -> None:
    """`make brokers` runs the contracts and writes it again."""
    page = BROKERS_PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


@pytest.mark.parametrize("broker", [key for _, _, key in BROKERS])
def test_every_broker_has_passed_every_case(broker: str) -> None:
    entry = record()[broker]
    assert set(entry["in"]) == cases("sources", "broker")
    assert set(entry["out"]) == cases("sinks", "outlet")
    assert all(entry["in"].values())
    assert all(entry["out"].values())
    assert len(entry["in"]) >= 30
