"""PostgreSQL of one major version: the contract, or a part of it, and a load in which the server is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from engines.load import Load, Verdict
from tests.servers import PostgresServer, install

ROOT = Path(__file__).parents[1]
CONTRACT = ("tests/contract", "tests/migration")
SMOKE = ("tests/contract/test_receive.py", "tests/contract/test_inline.py", "tests/migration/test_migrations.py")
MESSAGES = 3_000


class Report(NamedTuple):
    """What an engine has shown."""

    server: str
    version: str
    played: str
    passed: int
    failed: int
    fault: str
    load: Verdict


def contract(major: str) -> Report:
    """Every case of the contract that runs on PostgreSQL."""
    return _report(major, "the contract", CONTRACT)


def smoke(major: str) -> Report:
    """A part of it."""
    return _report(major, "a part of the contract", SMOKE)


def _report(major: str, played: str, tests: tuple[str, ...]) -> Report:
    os.environ[install.POSTGRES] = major
    passed, failed = cases(tests)
    with PostgresServer(durable=True) as server:
        verdict = Load(server.url(), MESSAGES).play(lambda: _crash(server))
        return Report("PostgreSQL", server.version, played, passed, failed, "kill -9 of the server, restart", verdict)


def _crash(server: PostgresServer) -> None:
    server.kill()
    server.start()


def cases(tests: tuple[str, ...]) -> tuple[int, int]:
    """How many cases passed and failed, of those on PostgreSQL."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", os.environ.get("WORKERS", "4"), "--dist", "worksteal"]
    command += [*tests, "-k", "postgres or not sqlite"]
    said: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            sys.stdout.write(line)
            said.append(line)
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)", said[-1])}
    passed = found.pop("passed", 0)
    return passed, sum(found.values()) or int(run.returncode != 0)
