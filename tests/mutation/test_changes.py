"""What may be changed is found in Python and in SQL, and can be played as any mutant is."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from mutants.player import PACKAGE
from mutation import python, sql
from mutation.__main__ import every_change, sample
from mutation.change import Change
from mutation.covered import Covered
from mutation.outcome import play
from mutation.rooms import ROOMS, Room

CODE = '''
"""a < b"""
async def f(a: int, b: int = 3) -> bool:
    """1 + 1"""
    log.info("%s", a == 2)
    if a < b and not b:
        raise ValueError(f"{a + 1}")
    while a is not None:
        await g(a)
        break
    a += 1
    return a in (1, True)

@dataclass(frozen=False)
class C:
    pairs: list[int] = zip(b, [7], strict=False)
'''
STATEMENT = b"""-- name: claim
-- WHERE a = b
UPDATE t SET a = :a WHERE b <= {now}
  AND c IS NULL
FOR UPDATE SKIP LOCKED;
"""


def shown(found: list[Change], source: bytes) -> set[str]:
    return {f"{change.kind}: {change.shown(source)}" for change in found}


def test_python_is_changed_where_it_decides_something() -> None:
    found = shown(python.changes("f.py", CODE.encode()), CODE.encode())
    assert {
        "comparison: < -> <=",
        "comparison: is not -> is",
        "comparison: in -> not in",
        "and/or: and -> or",
        "condition negated: not b -> b",
        "condition negated: a < b and not b -> (not (a < b and not b))",
        'raise removed: raise ValueError(f"{a + 1}") -> pass',
        "await removed: await g(a) -> g(a)",
        "statement removed: await g(a) -> pass",
        "statement removed: a += 1 -> pass",
        "break/continue: break -> continue",
        "returned value: a in (1, True) -> None",
        "constant: True -> False",
        "constant: 3 -> 4",
        "constant: 7 -> 8",
    } <= found
    assert "constant: False -> True" not in found
    assert not any("log" in change or "==" in change or "int" in change for change in found)


def test_sql_is_changed_in_its_conditions_and_locks() -> None:
    assert shown(sql.changes("f.sql", STATEMENT), STATEMENT) == {
        "comparison: <= -> <",
        "condition removed: AND c IS NULL -> (nothing)",
        "comparison: IS NULL -> IS NOT NULL",
        "lock removed: FOR UPDATE SKIP LOCKED -> (nothing)",
        "lock removed: SKIP LOCKED -> (nothing)",
    }


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_has_changes_that_can_be_made(room: Room) -> None:
    """Each stands once in its file, and what comes of it is Python."""
    found = every_change(room)
    assert len(found) > 100
    for change, source in sample(found, 60, "any"):
        mutant = change.mutant(source)
        text = source.decode()
        assert text.count(mutant.old) == 1
        changed = text.replace(mutant.old, mutant.new)
        assert changed != text
        if change.file.endswith(".py"):
            ast.parse(changed)


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    found = every_change(ROOMS[0])
    assert sample(found, 20, "7 steps") == sample(found, 20, "7 steps") != sample(found, 20, "8 steps")


def test_the_quickest_test_that_runs_a_line_comes_first_and_one_that_failed_does_not_count() -> None:
    found = python.changes("f.py", CODE.encode())
    covered = Covered({"slow": 2.0, "quick": 0.1, "other": 0.1}, {"f.py": {found[0].line: ["slow", "failed", "quick"]}})
    assert covered.tests(found[0]) == ("quick", "slow")


def test_what_runs_at_the_import_and_what_goes_on_over_lines_have_tests() -> None:
    """Coverage knows no test of the first, and only the first line of the second."""
    source = b"LIMIT = 3\n\ndef f(a):\n    return g(\n        a + 1,\n    )\n"
    covered = Covered({"t": 1.0}, {"f.py": {1: [], 3: [], 4: ["t"]}})
    assert {(change.line, *covered.tests(change)) for change in python.changes("f.py", source)} == {
        (1, "t"),
        (4, "t"),
        (5, "t"),
    }


def test_a_test_with_a_space_in_its_name_decides_as_any_other() -> None:
    """It was taken for two that cannot be found, and every change that reached it counted as killed."""
    name = "tests/unit/test_steps_claim.py::TestClaim::test_it_does_not_look_on_for_ever[no progress]"
    source = (PACKAGE / "steps" / "claim.py").read_bytes()
    known = Covered({name: 1.0}, {"steps/claim.py": {1: [name]}})
    same = Change("steps/claim.py", 0, 0, "", "nothing", 1)
    assert play("steps", same, source, known).result == "survived"
    wrong = replace(same, new="raise OSError\n")
    assert play("steps", wrong, source, known).result == "killed"
