"""`python -m bench.pgbench COMMAND ...`: a script of `limits/`, run by pgbench, as a process of a race."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.race import Finish, ours, take_part

LIMITS = Path(__file__).with_name("limits")


def by_pgbench(url: str, script: str, *, clients: int, transactions: int, **variables: int) -> list[list[str]]:
    """The commands of a race that has pgbench alone; each client does its part of the transactions, rounded up."""
    each = -(-transactions // clients)
    command = ["-n", "-M", "prepared", "-c", clients, "-j", min(clients, 2), "-t", each, "-f", LIMITS / f"{script}.sql"]
    for name, value in variables.items():
        command += ["-D", f"{name}={value}"]
    return [ours("pgbench", _program(), *command, url)]


@cache
def _program() -> Path:
    from tests.servers import install  # noqa: PLC0415 - the process of a race need not know where it is

    return install.postgresql_bin() / "pgbench"


def connected(finish: Finish) -> Finish:
    """Without the time that it took to connect, which other contenders have behind them at the word."""
    return replace(finish, started=finish.started + finish.answers[0]["connecting"])


def settings(script: str, clients: int, **others: object) -> Mapping[str, object]:
    """As the page shows them."""
    return {"script": f"{script}.sql", "clients": clients, "protocol": "prepared", **others}


def _run(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"initial connection time = ([\d.]+) ms", done.stdout)
    if done.returncode or not found or "failed transactions: 0 " not in done.stdout:
        raise RuntimeError(f"pgbench: {done.stderr.strip() or done.stdout}")
    return {"connecting": float(found[1]) / 1000}


if __name__ == "__main__":
    take_part(lambda: _run(sys.argv[1:]))
