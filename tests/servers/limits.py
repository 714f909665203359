"""What the servers of this run cannot do, and so which cases are not played; the end of the run names them all.

What every run leaves out for its time has its reason here, too; `make whole` plays it. `@pytest.mark.whole("a reason")`
marks a case as one of these.

A case says what servers it needs by the fixtures it asks for, by a parameter that ends in "postgres", or, where it
starts one by itself, with `@pytest.mark.needs("PostgreSQL")`; `needs("Linux")` where other systems have no such thing.

A case says what it wants of a server beyond the ordinary: `@pytest.mark.needs("proxy")` to cut and hold connections,
"restart" to kill the server, "refusal" of topics that do not exist, "passwords" that the tests know; or "peers", the
other queues that the benchmark compares with, and "bench", the time for all of it.

Invariant: nothing is skipped while it runs. What cannot be played is known before, and said with its reason.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from tests.servers import install
from tests.servers.foreign import foreign

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

LEFT_OUT = pytest.StashKey[dict[str, str]]()
"""The reason for each case that is not played."""
_NAMED = 30
"""Of how many functions left out for one reason the end of the run names each; of more, it names the files."""
_FIXTURES = {
    "postgres_server": "PostgreSQL",
    "private_postgres": "PostgreSQL",
    "mariadb_server": "MariaDB",
    "private_mariadb": "MariaDB",
    "pgbouncer_server": "PgBouncer",
    "redis_server": "Redis",
    "nats_server": "NATS",
    "rabbit_server": "RabbitMQ",
    "mosquitto_server": "Mosquitto",
    "pubsub_server": "Pub/Sub",
    "browser": "Chromium",
    "dynamo_server": "DynamoDB Local",
}
_BROKERS = {"redis": "Redis", "nats": "NATS", "rabbit": "RabbitMQ", "mqtt": "Mosquitto", "pubsub": "Pub/Sub"}
_EVERY_DAY = frozenset(
    [
        "test_each_message_takes_effect_once_and_is_settled",
        "test_order_within_a_key_is_the_brokers",
        "test_killed_between_commit_and_acceptance",
        "test_what_is_released_comes_again",
        "test_a_source_reads_what_was_sent",
        "test_what_is_sent_comes_in_again",
    ]
)
"""What Pulsar plays in every run."""
_DYNAMODB = frozenset(
    [
        "test_every_outcome_of_a_message",
        "test_a_number_waits_for_the_one_before_it",
        "test_it_is_cancelled_while_it_is_scheduled_and_never_runs",
        "test_discard_forgets_the_body_and_asks_again",
        "test_every_report_can_be_made",
        "test_a_body_that_the_store_cannot_keep_is_refused_by_name",
    ]
)
"""What of the shipped suite is played on DynamoDB in every run."""
_IN_TURNS = {
    "sqlite": ("SQLite", 0),
    "postgres": ("PostgreSQL", 1),
    "cursors-postgres": ("PostgreSQL without pipelines", 0),
    "mariadb": ("MariaDB", 0),
    "redis": ("Redis", 1),
}
"""Stores on which plain and awaited handlers take turns at the shipped suite and the contract. Which has which depends
on the name of a case and on this number: every case is played by both."""
_BOTH_KINDS = frozenset(
    [
        *("after_commit", "cancellation", "handle", "hostile_handlers", "inside", "interrupt", "leftovers"),
        *("middleware", "outages", "pipelines", "pools", "timeouts", "wake_up"),
    ]
)
"""Files of the contract about what differs between the drivers of plain and of awaited handlers: no turns are taken."""
_BOTH = "ONCEWARD_STORES"
_PEERS = Path(__file__).parents[2] / "bench" / ".venv"
_MOCK = {
    "proxy": "librdkafka's mock cluster advertises its own address, past any proxy",
    "restart": "librdkafka's mock cluster has everything in memory",
    "refusal": "librdkafka's mock cluster makes a topic that is asked for",
}

_TIDB = {
    "procedures": "TiDB has no stored procedures",
    "SIGNAL": "TiDB has no SIGNAL, by which this case makes a commit fail",
    "SERIALIZABLE": "TiDB refuses SERIALIZABLE",
    "triggers": "TiDB has no triggers",
    "late views": "on TiDB the view of a transaction begins with its first statement, here before the subscription",
    "gap locks": "TiDB locks no gaps between rows, so the two do not wait for each other",
}
"""What TiDB cannot do."""


def why_not(item: pytest.Item) -> str:
    """Why a case cannot be played in this run; empty if it can."""
    broker = broker_of(item)
    needs = {str(need) for mark in item.iter_markers("needs") for need in mark.args}
    if "Linux" in needs and sys.platform != "linux":
        return "only Linux has what it needs"
    servers = [server for server in _servers(item, broker, needs) if foreign(broker) is None or server == "PostgreSQL"]
    if absent := next(filter(None, map(install.absent, servers)), ""):
        return absent
    if "peers" in needs:
        return peer_missing(item)
    if tidb := _on_tidb(needs):
        return tidb
    if another := _of_another_run(item, needs) or _in_java(item, broker):
        return another
    cannot: dict[str, str] = {}
    if broker == "kafkamock":
        cannot = _MOCK
    elif foreign(broker):
        cannot = {
            "restart": f"{broker} is yours, and is not killed",
            "passwords": f"{broker} is yours, and so are they",
        }
        if broker == "kafka":
            cannot["proxy"] = "your Kafka advertises its own address, past any proxy"
    return next((cannot[need] for need in sorted(needs) if need in cannot), "")


def _on_tidb(needs: Collection[str]) -> str:
    """Why a case is not played where TiDB is, or is not, the server of MySQL's family."""
    if os.environ.get("ONCEWARD_MYSQL") == "tidb":
        return next((_TIDB[need] for need in sorted(needs) if need in _TIDB), "")
    return "TiDB takes minutes to build (make engines ENGINE=tidb plays it)" if "TiDB" in needs else ""


def _in_java(item: pytest.Item, broker: str) -> str:
    """Why a case is not played on a server in Java, which Maven may not have fetched."""
    if broker == "kafka" and foreign(broker) is None and (missing := install.KAFKA.missing()):
        return f"{missing}; librdkafka's mock cluster stands in"
    if broker == "pulsar":
        return install.PULSAR.missing() or _not_today(item)
    return ""


def _not_today(item: pytest.Item) -> str:
    """Of a server that takes ten seconds to start, every run plays a few cases of the contract."""
    is_contract = {"pair", "outlet", "door"} & set(getattr(item, "fixturenames", ()))
    if not is_contract or os.environ.get("ONCEWARD_SOURCES") == "all" or item.originalname in _EVERY_DAY:  # type: ignore[attr-defined] # of a function
        return ""
    return "the quick brokers play it every day (make brokers plays all, make engines ENGINE=pulsar too)"


def _of_another_run(item: pytest.Item, needs: Collection[str]) -> str:
    """Which other run plays a case; empty where it is of every run."""
    if "bench" in needs and os.environ.get("ONCEWARD_PEERS") != "all":
        return "the whole benchmark in small is played by make bench-peers, with which make bench begins"
    if _others_turn(item):
        return f"the other kind of handler plays it on {_IN_TURNS[_store(item)][0]} (make whole plays both)"
    if (mark := item.get_closest_marker("whole")) and os.environ.get(_BOTH) != "all":
        return f"{mark.args[0]} (make whole plays it)"
    return "make whole plays the whole suite on DynamoDB" if _another_day(item) else ""


def _others_turn(item: pytest.Item) -> bool:
    """Whether a case of the shipped suite is played by the other kind of handler, on a store where they take turns."""
    if os.environ.get(_BOTH) == "all" or _store(item) not in _IN_TURNS:
        return False
    params: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined] # of a function
    others = {name: value for name, value in sorted(params.items()) if name not in ("kind", "place", "store_url")}
    case = f"{item.originalname} {others}"  # type: ignore[attr-defined] # of a function
    return bool(params["kind"] != ("def", "async")[(crc32(case.encode()) + _IN_TURNS[_store(item)][1]) % 2])


def _store(item: pytest.Item) -> str:
    """The store on which the kinds of handlers take turns at a case; empty where they do not."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    names = getattr(item, "fixturenames", ())
    if "kind" not in params:
        return ""
    if "place" not in names:
        takes_turns = item.path.parent.name == "contract" and item.path.stem.removeprefix("test_") not in _BOTH_KINDS
        return str(params.get("store_url", "")) if takes_turns else ""
    return "redis" if "durable_redis" in names else str(params.get("place", ""))


def _another_day(item: pytest.Item) -> bool:
    """Whether a case of the suite on DynamoDB is not of the few that every run plays."""
    is_suite = "dynamo_place" in getattr(item, "fixturenames", ())
    asked = os.environ.get("ONCEWARD_DYNAMODB") == "all" or item.originalname in _DYNAMODB  # type: ignore[attr-defined] # of a function
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return is_suite and not (asked and (params.get("kind") != "async" or os.environ.get("ONCEWARD_DYNAMODB") == "all"))


def leave_out(config: pytest.Config, items: list[pytest.Item], reasons: Mapping[pytest.Item, str]) -> None:
    """Choose all but these, and note why."""
    config.hook.pytest_deselected(items=list(reasons))
    config.stash[LEFT_OUT] |= {item.nodeid: why for item, why in reasons.items()}
    items[:] = [item for item in items if item not in reasons]


def summary(left_out: Mapping[str, str]) -> Iterator[str]:
    """What was left out, by reason."""
    for why in sorted(set(left_out.values())):
        cases = [nodeid for nodeid, reason in left_out.items() if reason == why]
        functions = Counter(nodeid.partition("[")[0] for nodeid in cases)
        if len(functions) > _NAMED:
            files = Counter(nodeid.partition("::")[0] for nodeid in cases)
            named = [f"{file} ({count})" for file, count in sorted(files.items())]
        else:
            named = sorted(nodeid.rpartition("::")[2] for nodeid in cases)
        yield f"{why}: {len(cases)} {'case' if len(cases) == 1 else 'cases'}: {', '.join(named)}"


def _servers(item: pytest.Item, broker: str, needs: set[str]) -> Iterator[str]:
    """The servers that a case needs."""
    known = {server.name for server in install.SERVERS}
    yield from sorted(needs & known)
    if broker in _BROKERS:
        yield _BROKERS[broker]
    yield from (_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in _FIXTURES)
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if any(isinstance(value, str) and value.endswith("postgres") for value in params.values()):
        yield "PostgreSQL"
    if "mariadb" in params.values():
        yield "MariaDB"


def peer_missing(item: pytest.Item) -> str:
    """Why a case that needs a peer of the benchmark is not played; empty if it is."""
    if os.environ.get("ONCEWARD_PEERS") != "all":
        return "the peers of the benchmark are tested by make bench-peers"
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    package = str(params["peer"].package).replace("-", "_")
    installed = any(_PEERS.glob(f"lib/python*/site-packages/{package}-*.dist-info"))
    return "" if installed else f"{package} could not be installed for the benchmark"


def broker_of(item: pytest.Item) -> str:
    """Whose case it is: that of a contract names its broker, any other asks for its server."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if named := next((params[name] for name in ("pair", "outlet", "door") if name in params), ""):
        return str(named).partition("-")[0]
    servers = [name for name in getattr(item, "fixturenames", ()) if name.endswith("_broker") or name == "kafka_server"]
    return servers[0].rpartition("_")[0] if servers else ""
