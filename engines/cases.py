"""The cases of the tests that are played on an engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Cases(NamedTuple):
    """Which they are."""

    name: str
    tests: tuple[str, ...] = ()
    chosen: str = ""
    environment: Mapping[str, str] = {}


def play(cases: Cases) -> tuple[int, int]:
    """How many passed and failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", os.environ.get("WORKERS", "4"), "--dist", "worksteal"]
    command += [*cases.tests, "-k", cases.chosen]
    said: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **cases.environment}, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            sys.stdout.write(line)
            said.append(line)
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)", said[-1])}
    passed = found.pop("passed", 0)
    return passed, sum(found.values()) or int(run.returncode != 0)


ALONE = Cases("the load alone")


def postgres(major: str) -> Cases:
    """Of the oldest and the newest version all, of those between a part."""
    environment = {"ONCEWARD_POSTGRES": major}
    if major in ("13", "18"):
        return Cases("the contract", ("tests/contract", "tests/migration"), "postgres or not sqlite", environment)
    part = ("contract/test_receive.py", "contract/test_inline.py", "migration/test_migrations.py")
    return Cases("a part of the contract", tuple(f"tests/{one}" for one in part), "postgres or not sqlite", environment)


def mysql(server: str) -> Cases:
    """The shipped suite and what MySQL lets a handler do, on the server of its family that is named."""
    files = ("store_suite", "mysql_guards", "mysql_callers", *(["tidb"] if server == "tidb" else []))
    tests = tuple(f"tests/contract/test_{one}.py" for one in files)
    environment = {"ONCEWARD_MYSQL": server, "ONCEWARD_STORES": "all"}
    return Cases("the shipped suite, guards and callers", tests, "mariadb or mysql or tidb", environment)


def redis(*, valkey: bool = False) -> Cases:
    """The shipped suite and the store's own; Valkey's package is built without TLS."""
    environment = {"ONCEWARD_STORES": "all"} | ({"ONCEWARD_VALKEY": "1"} if valkey else {})
    chosen = "not tls" if valkey else ""
    return Cases("the suite, crashes and races", ("tests/redis_store",), chosen, environment)


def dynamodb() -> Cases:
    """The shipped suite and the store's own; with ONCEWARD_DYNAMODB=part what every run of the tests plays of it."""
    played = os.environ.get("ONCEWARD_DYNAMODB", "all")
    name = "the suite" if played == "all" else "a part of the suite"
    return Cases(f"{name}, units of work and races", ("tests/dynamodb",), "", {"ONCEWARD_DYNAMODB": played})


PULSAR = Cases(
    "the contract of brokers",
    (
        *("tests/sources/test_contract.py", "tests/sources/test_pulsar.py", "tests/sources/test_tls.py"),
        "tests/sinks/test_contract.py",
    ),
    "pulsar",
    {"ONCEWARD_SOURCES": "all"},
)
