"""`python -m engines NAME`: play an engine; the last line says what came of it, and `--json` keeps it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from engines.failover import failover
from engines.postgres import Report, contract, smoke
from proof import engines, report

ENGINES: dict[str, Callable[[], Report]] = {
    "postgres13": partial(contract, "13"),
    "postgres14": partial(smoke, "14"),
    "postgres16": partial(smoke, "16"),
    "postgres17": partial(smoke, "17"),
    "postgres18": partial(contract, "18"),
    "failover": failover,
}


def main(arguments: list[str]) -> int:
    """Play one; the exit code is 0 where nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m engines")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--json", default="")
    parser.add_argument("--page", action="store_true", help="write docs/engines.md from all that is recorded")
    options = parser.parse_args(arguments)
    found = ENGINES[options.engine]()
    if options.json:
        figures = found._asdict() | {"load": found.load._asdict()}
        report.write(
            options.json, {"run": options.engine, "date": datetime.now(UTC).date().isoformat(), "engine": figures}
        )
    if options.page:
        engines.write()
    print(line(options.engine, found))
    load = found.load
    return int(any((found.failed, load.lost, load.doubled, load.disordered, not found.passed, not load.messages)))


def line(name: str, found: Report) -> str:
    """What came of it."""
    load = found.load
    return (
        f"engines: {name} {found.version}, {found.passed} passed, {found.failed} failed, "
        f"lost {load.lost}, doubled {load.doubled}, disordered {load.disordered}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
