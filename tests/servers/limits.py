"""What the servers of this run cannot do, and so which cases are not played; the end of the run names them.

A case says what it wants of a server beyond the ordinary: `@pytest.mark.needs("proxy")` to cut and hold connections,
"restart" to kill the server, "refusal" of topics that do not exist, "passwords" that the tests know.

Invariant: nothing is skipped while it runs. What cannot be played is known before, and said with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.servers import install
from tests.servers.foreign import foreign

if TYPE_CHECKING:
    import pytest

_MOCK = {
    "proxy": "librdkafka's mock cluster advertises its own address, past any proxy",
    "restart": "librdkafka's mock cluster has everything in memory",
    "refusal": "librdkafka's mock cluster makes a topic that is asked for",
}


def why_not(item: pytest.Item) -> str:
    """Why a case cannot be played in this run; empty if it can."""
    broker = broker_of(item)
    needs = {str(need) for mark in item.iter_markers("needs") for need in mark.args}
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


def broker_of(item: pytest.Item) -> str:
    """Whose case it is: that of a contract names its broker, any other asks for its server."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if named := next((params[name] for name in ("pair", "outlet", "door") if name in params), ""):
        return str(named).partition("-")[0]
    servers = [name for name in getattr(item, "fixturenames", ()) if name.endswith("_broker") or name == "kafka_server"]
    return servers[0].rpartition("_")[0] if servers else ""
