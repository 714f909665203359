"""`python -m engines NAME`: play an engine; the last line says what came of it, and `--json` keeps it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from engines import cases
from engines.cases import ALONE, Cases
from engines.dynamodb import dynamodb
from engines.failover import failover
from engines.load import Report
from engines.mysql import galera, group, mariadb, mariadb11, mysql, tidb
from engines.postgres import postgres
from engines.pulsar import pulsar
from engines.redis import redis
from proof import engines, report
from tests.servers import RedisServer, ValkeyServer


class Engine(NamedTuple):
    """What is played on it."""

    cases: Cases
    load: Callable[[], Report]


ENGINES = {
    **{f"postgres{major}": Engine(cases.postgres(major), postgres) for major in ("13", "14", "16", "17", "18")},
    "failover": Engine(ALONE, failover),
    "pulsar": Engine(cases.PULSAR, pulsar),
    "mysql": Engine(cases.mysql("mysql"), mysql),
    "mariadb": Engine(cases.mysql(""), mariadb),
    "mariadb11": Engine(cases.mysql("mariadb11"), mariadb11),
    "tidb": Engine(cases.mysql("tidb"), tidb),
    "galera": Engine(ALONE, galera),
    "group": Engine(ALONE, group),
    "dynamodb": Engine(cases.dynamodb(), dynamodb),
    "redis": Engine(cases.redis(), partial(redis, RedisServer)),
    "valkey": Engine(cases.redis(valkey=True), partial(redis, ValkeyServer)),
}


def main(arguments: list[str]) -> int:
    """Play one; the exit code is 0 where nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m engines")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--load", action="store_true", help="the load alone, without the cases")
    parser.add_argument("--json", default="")
    parser.add_argument("--page", action="store_true", help="write docs/engines.md from all that is recorded")
    options = parser.parse_args(arguments)
    engine = ENGINES[options.engine]
    if options.load:
        engine = engine._replace(cases=engine.cases._replace(name=ALONE.name, tests=()))
    os.environ |= engine.cases.environment  # it names the version of the server, too
    passed, failed = cases.play(engine.cases) if engine.cases.tests else (0, 0)
    found = engine.load()
    passed, failed = passed + found.checks.count(True), failed + found.checks.count(False)
    if options.json:
        figures = found._asdict() | {"played": engine.cases.name, "passed": passed, "failed": failed}
        del figures["checks"]
        report.write(options.json, {"run": options.engine, "engine": figures | {"load": found.load._asdict()}})
    if options.page:
        engines.write()
    print(line(options.engine, found, passed, failed))
    load = found.load
    wrong = failed, load.lost, load.doubled, load.disordered, not load.messages, bool(engine.cases.tests) and not passed
    return int(any(wrong))


def line(name: str, found: Report, passed: int, failed: int) -> str:
    """What came of it."""
    load = found.load
    return (
        f"engines: {name} {found.version}, {passed} passed, {failed} failed, "
        f"lost {load.lost}, doubled {load.doubled}, disordered {load.disordered}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
