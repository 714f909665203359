"""The server: what it must be, how well it keeps what it says, and numbers that a double cannot hold."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from onceward import ConfigurationError, Inbox, Message, StoreUnavailable
from onceward.admin import guarantees
from onceward.admin.doctor import examine
from onceward.errors import RightsMissing, SchemaMissing
from onceward.runtime.runner import perform
from onceward.steps.history import merged, save_activity
from onceward.stores.moves.history import COUNTED, MINUTES, Fold
from onceward.stores.redis import library
from onceward.testing.store_suite.shop import in_threads
from tests.dashboard.conftest import visiting
from tests.dashboard.shop import PEOPLE
from tests.redis_store.conftest import effect, effects
from tests.servers import RedisServer
from tests.servers.certificates import papers
from tests.servers.private import PASSWORD, USER
from tests.waiting import wait_until


class ClusterServer(RedisServer):
    """One node of a cluster."""

    def command(self, port: int) -> Any:
        return [*super().command(port), "--cluster-enabled", "yes"]


def levels(inbox: Inbox) -> dict[str, str]:
    """What the store says, by the word that tells it."""
    return {what: level for level, what, _ in inbox.store.findings()}


def test_a_cluster_is_refused_with_the_reason() -> None:
    said = "a cluster has transactions within a hash slot alone"
    with ClusterServer() as server, Inbox(server.address) as inbox, pytest.raises(ConfigurationError, match=said):
        inbox.migrate()


def test_an_inbox_that_was_not_made_says_how(address: str) -> None:
    with Inbox(address) as inbox, pytest.raises(SchemaMissing, match="onceward migrate"):
        inbox.store.check_schema()


def test_two_inboxes_share_a_server_by_their_prefixes(address: str, client: Any) -> None:
    for prefix in ("one_", "two_"):
        with Inbox(address, prefix=prefix) as inbox:
            inbox.migrate()
            inbox.on("order.paid")(effect)
            assert inbox.receive(source="test", id="m1", type="order.paid", data={}).status == "accepted"
            assert inbox.drain() == 1
    assert effects(client) == ["m1", "m1"]


def test_a_library_that_is_gone_is_loaded_again(inbox: Inbox, client: Any) -> None:
    """As after FUNCTION FLUSH, or on a server that was filled from elsewhere."""
    client.execute_command("FUNCTION", "FLUSH")
    assert inbox.receive(source="test", id="m1", type="order.paid", data={}).status == "accepted"
    assert library.name() in str(client.execute_command("FUNCTION", "LIST"))


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("appendfsync", "everysec", "may lose what was acknowledged in the last second"),
        ("appendonly", "no", "keeps no append-only file"),
        ("maxmemory-policy", "allkeys-lru", "may remove what an inbox must remember"),
    ],
)
def test_a_server_that_may_lose_something_is_weaker(
    inbox: Inbox, client: Any, setting: str, value: str, said: str
) -> None:
    inbox.on("order.paid")(effect)
    assert [one.level for one in guarantees.in_force(inbox.context, inbox.store)] == ["exactly-once"]
    before = client.config_get(setting)[setting]
    client.config_set(setting, value)
    try:
        (found,) = guarantees.in_force(inbox.context, inbox.store)
        assert (found.level, any(said in reason for reason in found.reasons)) == ("weaker", True)
        assert any(one.level == "error" and said in one.what for one in examine(inbox))
    finally:
        client.config_set(setting, before)


def test_a_replica_is_said(inbox: Inbox, durable_redis: RedisServer) -> None:
    """From its primary: a failover may lose something. And of itself, where an address leads to it."""
    inbox.on("order.paid")(effect)
    with RedisServer() as replica, redis.Redis.from_url(replica.address) as other:
        other.replicaof("127.0.0.1", durable_redis.port)
        wait_until(lambda: any("has 1 replica, and" in what for what in levels(inbox)))
        (found,) = guarantees.in_force(inbox.context, inbox.store)
        assert (found.level, any("a failover may lose" in reason for reason in found.reasons)) == ("weaker", True)
        with Inbox(replica.address) as there:
            wait_until(lambda: _levels_of_a_replica(there) == "error")
        other.replicaof("NO", "ONE")


def _levels_of_a_replica(inbox: Inbox) -> str:
    with suppress(StoreUnavailable):  # while it copies
        return levels(inbox).get("this Redis is a replica, which accepts no writes", "")
    return ""


def test_the_doctor_shows_capabilities_and_memory(inbox: Inbox) -> None:
    inbox.on("order.paid")(effect)
    for number in range(20):
        inbox.receive(source="test", id=f"m{number}", type="order.paid", data={"text": "x" * 100})
    found = [one.what for one in examine(inbox)]
    assert any("20 messages kept, about" in what for what in found)
    assert any("the store records what a handler writes" in what for what in found)
    assert any("no transactions of a caller's own" in what for what in found)
    inbox.drain()


def test_a_server_that_is_full_takes_nothing_and_still_answers(inbox: Inbox, client: Any) -> None:
    inbox.on("order.paid")(effect)
    inbox.receive(source="test", id="m1", type="order.paid", data={})
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            inbox.receive(source="test", id="m2", type="order.paid", data={})
        assert inbox.admin.stats().due == 1
    finally:
        client.config_set("maxmemory", 0)
    assert inbox.receive(source="test", id="m2", type="order.paid", data={}).status == "accepted"
    assert inbox.drain() == 2


@pytest.mark.parametrize("fresh", [False, True])
def test_a_server_that_is_away_is_unavailable_and_waited_for(
    inbox: Inbox, durable_redis: RedisServer, address: str, *, fresh: bool
) -> None:
    """Whether this program has spoken to it before or not."""
    with Inbox(address) as other:
        asking = other if fresh else inbox
        durable_redis.kill()
        try:
            with pytest.raises(StoreUnavailable):
                asking.receive(source="test", id="m1", type="order.paid", data={})
            with pytest.raises(StoreUnavailable):
                asking.store.findings()
        finally:
            durable_redis.start()
        assert asking.receive(source="test", id="m1", type="order.paid", data={}).status == "accepted"


def test_tls_and_a_password(
    address: str, durable_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: Any
) -> None:
    """As for the broker: `rediss://`, a user of the ACL, roots by SSL_CERT_FILE; and no secret is shown."""
    roots = tmp_path / "root.pem"
    roots.write_text(papers().root)
    where = f"{USER}:{{}}@127.0.0.1:{durable_redis.secure_port}/0"
    with Inbox("rediss://" + where.format(quote(PASSWORD))) as inbox:
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            inbox.migrate()
        monkeypatch.setenv("SSL_CERT_FILE", str(roots))
        inbox.migrate()
        inbox.on("order.paid")(effect)
        inbox.receive(source="test", id="m1", type="order.paid", data={})
        assert (inbox.drain(), effects(client)) == (1, ["m1"])
        assert quote(PASSWORD) not in inbox.store.url
    with Inbox("rediss://" + where.format("canary")) as inbox, pytest.raises(RightsMissing) as caught:
        inbox.migrate()
    assert "canary" not in str(caught.value)
    assert address


def test_the_dashboard_shows_what_the_store_has_not(inbox: Inbox) -> None:
    with visiting(inbox, credentials=PEOPLE) as visitor:
        page = visitor.sign_in(PEOPLE[0]).get("/").text
    assert "What this store cannot do" in page
    assert "records what a handler writes" in page


def test_history_is_folded_once_by_many(inbox: Inbox, address: str) -> None:
    """What another process has folded meanwhile is looked at again, and each count stays in one row."""
    inbox.on("order.paid")(effect)
    for number in range(7):
        inbox.receive(source="test", id=f"m{number}", type="order.paid", data={})
        inbox.drain()
        perform(inbox.store, lambda: save_activity(inbox.context))
    others = [Inbox(address) for _ in range(4)]
    fold = Fold(COUNTED, 60_000_000, -3600.0, 3)

    def folded(one: Inbox) -> None:
        while perform(one.store, lambda: one.context.moves.history.fold(fold, merged)):
            continue

    in_threads(*(lambda one=one: folded(one) for one in others))
    rows = perform(inbox.store, lambda: inbox.context.moves.history.read(0, 2**52, 1))
    assert {row["level"] for row in rows} == {MINUTES}
    assert (sum(row["received"] for row in rows), sum(row["done"] for row in rows)) == (7, 7)
    for one in others:
        one.close()


def test_numbers_within_a_key_may_be_larger_than_a_double_holds(inbox: Inbox, client: Any) -> None:
    """2**53 and the two after it are three numbers, in order."""
    seen: list[int] = []

    @inbox.on("order.paid", key="key", sequence="number")
    def handler(message: Message, tx: Any) -> None:
        seen.append(message.data["number"])
        effect(message, tx)

    first = 2**53
    for number in (first + 2, first, first + 1):
        inbox.receive(source="test", id=f"m{number}", type="order.paid", data={"key": "k", "number": number})
    consumer = client.hget("onceward_names", "default")
    client.hset("onceward_progress", f"{consumer}\x00\x00k", f"{first - 1:020}")  # as if all before had come
    while len(seen) < 3:
        inbox.drain()
    assert seen == [first, first + 1, first + 2]
