"""The list of mutants fits the code and the tests as they are, and a player that catches nothing it should not."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mutants import ALL
from mutants.__main__ import ENOUGH, main
from mutants.mutant import Mutant
from mutants.player import CHECKOUT, Unready, evaluate, play, stale
from simulation import mutants as simulated

CHEAP = next(one for one in ALL if one.name == "any signature is taken")
SHIPPED = {
    "tests/contract/test_store_suite.py": "store_suite",
    "tests/sources/test_contract.py": "broker_suite",
    "tests/sinks/test_contract.py": "broker_suite",
    "tests/redis_store/test_suite.py": "store_suite",
}
"""The suites that files play."""
IN_A_CHILD = "a stop while the program is imported is a failure"


@cache
def functions(file: str) -> set[str]:
    """The names of the tests in a file; where it plays the shipped suite, those of the suite as well."""
    suite = CHECKOUT / "src" / "onceward" / "testing" / SHIPPED.get(file, "-")
    paths = [CHECKOUT / file, *suite.glob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    functions = [node for tree in trees for node in ast.walk(tree)]
    return {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_mutants_enough() -> None:
    names = [*((one.name, "") for one in ALL), *((one.name, one.store) for one in simulated.ALL)]
    assert len(names) == len(set(names)) >= ENOUGH
    assert {mutant.store for mutant in ALL} <= {"", "sqlite", "postgres", "mariadb"}


def misfits(mutant: Mutant) -> list[str]:
    """What is wrong with a mutant, short of playing it."""
    found = [problem] if (problem := stale(mutant)) else []
    if mutant.old == mutant.new or not mutant.tests:
        found.append("it changes nothing, or names no test")
    for test in mutant.tests:
        file, *_, name = test.split("::")
        if name.partition("[")[0] not in functions(file):
            found.append(f"there is no {test}")
    return [f"{mutant.name}: {problem}" for problem in found]


def test_every_mutant_fits_the_code_and_its_tests_exist() -> None:
    assert [problem for mutant in ALL for problem in misfits(mutant)] == []
    assert misfits(replace(CHEAP, old="no such text", test=f"{CHEAP.test.partition('[')[0]}_not")) == [
        f"{CHEAP.name}: {CHEAP.file} has 'no such text' 0 times",
        f"{CHEAP.name}: there is no {CHEAP.test.partition('[')[0]}_not",
    ]


def test_a_mutant_is_caught_even_in_a_process_that_the_test_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All of them: `make mutants`."""
    file = tmp_path / "figures.json"
    assert main(["--only", IN_A_CHILD, "--json", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mutants: 1 of 1 caught (1 sqlite)"
    (figure,) = json.loads(file.read_text())["mutants"]
    by = "tests/cli/test_run.py::test_a_stop_while_the_program_is_imported_is_an_ordinary_end"
    assert figure == {"name": IN_A_CHILD, "store": "sqlite", "caught": True, "text": by}


def test_what_breaks_no_promise_is_not_caught() -> None:
    harmless = replace(CHEAP, new="hmac.compare_digest(signature, expected) for")
    assert evaluate(harmless).text == "every test passes"
    assert evaluate(replace(CHEAP, new="(")).text.startswith("no test failed")
    assert evaluate(replace(CHEAP, old="no such text")).text.startswith("does not apply")
    with pytest.raises(Unready):
        list(play([replace(CHEAP, test=f"{CHEAP.test}_not")]))
