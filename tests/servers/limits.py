"""What the servers of this run cannot do, and so which cases are not played; the end of the run names them all.

A case says what servers it needs by the fixtures it asks for, by a parameter that ends in "postgres", or, where it
starts one by itself, with `@pytest.mark.needs("PostgreSQL")`; `needs("Linux")` where other systems have no such thing.

A case says what it wants of a server beyond the ordinary: `@pytest.mark.needs("proxy")` to cut and hold connections,
"restart" to kill the server, "refusal" of topics that do not exist, "passwords" that the tests know; or "peers", the
other queues that the benchmark compares with.

Invariant: nothing is skipped while it runs. What cannot be played is known before, and said with its reason.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import install
from tests.servers.foreign import foreign

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEFT_OUT = pytest.StashKey[dict[str, str]]()
"""The reason for each case that is not played."""
_NAMED = 30
"""Of how many functions left out for one reason the end of the run names each; of more, it names the files."""
_FIXTURES = {
    "postgres_server": "PostgreSQL",
    "private_postgres": "PostgreSQL",
    "pgbouncer_server": "PgBouncer",
    "redis_server": "Redis",
    "nats_server": "NATS",
    "rabbit_server": "RabbitMQ",
    "mosquitto_server": "Mosquitto",
    "pubsub_server": "Pub/Sub",
    "browser": "Chromium",
}
_BROKERS = {"redis": "Redis", "nats": "NATS", "rabbit": "RabbitMQ", "mqtt": "Mosquitto", "pubsub": "Pub/Sub"}
_PEERS = Path(__file__).parents[2] / "bench" / ".venv"
_MOCK = {
    "proxy": "librdkafka's mock cluster advertises its own address, past any proxy",
    "restart": "librdkafka's mock cluster has everything in memory",
    "refusal": "librdkafka's mock cluster makes a topic that is asked for",
}


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
    if broker == "kafka" and foreign(broker) is None and (missing := install.kafka_missing()):
        return f"{missing}; librdkafka's mock cluster stands in"
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
