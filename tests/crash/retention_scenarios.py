"""What maintenance may be doing when something goes wrong: prune, archive, erase, and note what sources say."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from onceward.admin import adoption
from onceward.domain.reference import split
from onceward.flow import Query
from onceward.message import Delivery
from onceward.retention.archive import Archive
from onceward.runtime.runner import perform
from onceward.runtime.spool import Spool
from onceward.runtime.spooling import Spooling
from onceward.steps import prune
from onceward.steps.context import in_transaction
from onceward.steps.history import keep_history
from onceward.stores.moves.history import COUNTED
from tests.crash.scenarios import (
    FORGED,
    M1,
    SCENARIOS,
    Scenario,
    Stage,
    Tell,
    drains,
    ends,
    has,
    keyed,
    processes,
    published,
    receives,
)
from tests.crash.service import SOURCE, Service, message

if TYPE_CHECKING:
    from tests.crash.ground import Ground

FOLDED = "folded"
A_MONTH_AGO = int((time.time() - 30 * 86_400) * 1_000_000)
NOTHING_KEPT = {"body_retention": 0.0, "dedupe_retention": 0.0}
NO_BODIES = {"body_retention": 0.0}
DEAD = message("m2", do={"reject": True})


def _finished(*messages: Any) -> Callable[[Stage], None]:
    """These are finished or dead, and what may be forgotten of them is old."""

    def prepare(stage: Stage) -> None:
        stage.service.receive_many(list(messages))
        stage.service.drain()
        inbox = stage.service.inbox
        for _ in range(3):  # a next partition is made, then moved on to, then the old one is closed
            perform(inbox.store, lambda: in_transaction(inbox.context, Query("rotate_partition", {"seconds": 0.0})))

    return prepare


def _forgettable(stage: Stage) -> None:
    _finished(M1, DEAD)(stage)
    stage.service.receive(**M1)
    stage.ground.forgettable = {"default/m1"}


def _a_whole_partition(stage: Stage) -> None:
    _finished(M1)(stage)
    stage.ground.forgettable = {"default/m1"}


def _prune(service: Service, _: Tell) -> None:
    service.inbox.retention.prune()


def _take_a_turn(service: Service, _: Tell) -> None:
    """A turn so short that there is more to do after it."""
    with mock.patch.object(prune, "TURN_SECONDS", 0.0):
        perform(service.inbox.store, lambda: prune.maintain(service.inbox.context, prune.PruneProgress()))


def _counted_long_ago(stage: Stage) -> None:
    """Four counts of one minute, as two processes wrote them."""
    inbox = stage.service.inbox
    row: Any = {
        "level": COUNTED,
        "starts_at": A_MONTH_AGO,
        "consumer": "c",
        "source": "s",
        "type": FOLDED,
        "received": 2,
    }
    row |= dict.fromkeys(("duplicates", "mismatches", "done", "failed", "dead"), 0)
    row |= dict.fromkeys(("backlog", "oldest", "lateness", "wait", "run"))
    perform(inbox.store, lambda: inbox.context.moves.history.record([row, row]))


def _fold(service: Service, _: Tell) -> None:
    perform(service.inbox.store, lambda: keep_history(service.inbox.context))


def _all_are_counted(ground: Ground) -> None:
    """However far they are folded, none is lost and none doubled."""
    assert ground.number(f"SELECT sum(received) FROM onceward_history WHERE type = '{FOLDED}'") == 4


def _only_the_dead_is_left(ground: Ground) -> None:
    assert ground.rows("SELECT id FROM onceward_body") == [("m2",)]
    for table in ("run", "duplicate", "result"):
        assert ground.number(f"SELECT count(*) FROM onceward_{table}") == 0, table


def _nothing_is_left(ground: Ground) -> None:
    assert ground.number("SELECT count(*) FROM onceward_body") == 0


def _the_dead_has_its_body(ground: Ground) -> None:
    """What may be needed is there at every moment."""
    assert "m2" in {name for (name,) in ground.rows("SELECT id FROM onceward_body")}


def _archive(service: Service, _: Tell) -> None:
    service.inbox.retention.archive(Path(service.folder, "archive"))


def _in_the_archive_or_the_database(ground: Ground) -> None:
    """A body is in one of them at every moment."""
    stored = {name for (name,) in ground.rows("SELECT id FROM onceward_body")}
    assert stored | {record["id"] for record in Archive(ground.folder / "archive").read()} == {"m1", "m2"}


def _in_the_archive(ground: Ground) -> None:
    assert [record["id"] for record in Archive(ground.folder / "archive").read()] == ["m1"]
    assert ground.rows("SELECT id FROM onceward_body") == [("m2",)]


def _erase(service: Service, _: Tell) -> None:
    """Everything of an account, and one message by its id."""
    found = [*service.inbox.retention.personal(key="a"), *service.inbox.retention.personal(source=SOURCE, id="m1")]
    assert service.inbox.retention.erase(*{match.seq for match in found}, reason="a test", actor="operator") == []


def _personal(stage: Stage) -> None:
    """Finished and dead of an account, a message with a case of quarantine."""
    _finished(keyed("a", 1), keyed("a", 2, do={"reject": True}), M1)(stage)
    assert stage.service.receive(**FORGED).status == "mismatch"


def _erased(ground: Ground) -> None:
    """No bytes of them are left; each erasure has its line."""
    assert ground.number("SELECT count(*) FROM onceward_body WHERE body IS NOT NULL") == 0
    assert ground.number("SELECT count(*) FROM onceward_quarantine WHERE length(body) > 0") == 0
    lines = ground.rows("SELECT DISTINCT seq FROM onceward_audit WHERE action = 'erase'")
    assert len(lines) == 3


def _declare(service: Service, tell: Tell) -> None:
    service.inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(hours=1))
    receives(M1)(service, tell)


def _declared(ground: Ground) -> None:
    assert ground.number("SELECT count(*) FROM onceward_source") == 1


def _receive_unsigned(service: Service, tell: Tell) -> None:
    """Its id is not signed, so it is noted by its bytes before it is stored."""
    tell("m1", service.inbox._receiver.receive(Delivery.of(**M1, echo_window=3600.0)))


def _first_seen(ground: Ground) -> None:
    assert ground.number("SELECT count(*) FROM onceward_first_seen") == 1


def _no_case(ground: Ground) -> None:
    assert ground.number("SELECT count(*) FROM onceward_quarantine") == 0


def _import_ids(service: Service, tell: Tell) -> None:
    """What was handled before, a batch for each id; then copies of it come, and a message that is new."""
    with mock.patch.object(adoption, "BATCH", 1):
        service.inbox.admin.import_ids(SOURCE, ["m1", "m2"], consumers=["default"])
    receives(M1, message("m2"), message("m3"))(service, tell)


LARGE = [message(name, filling="x" * 5000) for name in ("m1", "m2")]
LARGE_SENDER = message("m1", do={"send": 2, "more": {"filling": "x" * 5000}})


def _kept(ground: Ground) -> set[str]:
    """The names of the blobs."""
    folder = ground.folder / "blobs"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _referred(ground: Ground) -> set[str]:
    """The names of the blobs that rows refer to."""
    found = [split(headers)[1] for (headers,) in ground.rows("SELECT headers FROM onceward_body")]
    return {reference.name for reference in found if reference}


def _no_body_is_lost(ground: Ground) -> None:
    """What a row refers to is there at every moment."""
    assert _referred(ground) <= _kept(ground)


def _collect_everything(service: Service) -> None:
    """As if a day had passed since anything was received."""
    service.inbox.retention.collect(older_than=timedelta(hours=-1))


def _collect(service: Service, _: Tell) -> None:
    _collect_everything(service)


def _left_behind(stage: Stage) -> None:
    """A body of a message, and one that nobody refers to."""
    _finished(*LARGE)(stage)
    stage.ground.change("UPDATE onceward_body SET headers = NULL WHERE id = 'm2'")


def _nothing_else_is_kept(ground: Ground) -> None:
    assert _referred(ground) == _kept(ground)


def _erase_large(service: Service, _: Tell) -> None:
    found = service.inbox.retention.personal(field=("name", "m1"))
    assert service.inbox.retention.erase(*(match.seq for match in found), reason="a test") == []


SPOOLED = [M1, message("m2"), M1]


def _spooled(stage: Stage) -> None:
    """They came while the database was away, one of them twice."""
    Spool(stage.ground.folder / "spool").append([Delivery.of(**one) for one in SPOOLED])


def _drain_the_spool(service: Service, _: Tell) -> None:
    Spooling(Path(service.folder, "spool"), service.inbox._receiver.store_first, 1.0).drain()


def _drain_what_is_left(service: Service) -> None:
    """As the next process does that opens the spool."""
    Spooling(Path(service.folder, "spool"), service.inbox._receiver.store_first, 1.0).drain()
    service.drain()


def _in_the_spool_or_the_database(ground: Ground) -> None:
    """A message is in one of them at every moment."""
    waiting = {one.delivery.id for one in Spool(ground.folder / "spool").read(0, len(SPOOLED))}
    assert waiting | {name for (name,) in ground.rows("SELECT id FROM onceward_body")} == {"m1", "m2"}


def _the_spool_is_empty(ground: Ground) -> None:
    assert Spool(ground.folder / "spool").is_empty


RETENTION: dict[str, Scenario] = {
    "drain the spool": Scenario(
        _drain_the_spool,
        ends("done", "m1", "m2"),
        _spooled,
        ("sync",),
        aftercare=_drain_what_is_left,
        check=_the_spool_is_empty,
        always=_in_the_spool_or_the_database,
    ),
    "receive large": Scenario(
        receives(*LARGE),
        ends("done", "m1", "m2"),
        aftercare=_collect_everything,
        check=_nothing_else_is_kept,
        always=_no_body_is_lost,
        blobs=True,
    ),
    "handle large": Scenario(drains, ends("done", "m1", "m2"), has(*LARGE), always=_no_body_is_lost, blobs=True),
    "process large": Scenario(
        processes(*LARGE),
        ends("done", "m1", "m2"),
        aftercare=_collect_everything,
        check=_nothing_else_is_kept,
        always=_no_body_is_lost,
        blobs=True,
    ),
    "send large": Scenario(
        drains,
        ends("done", "m1"),
        has(LARGE_SENDER),
        check=published(2),
        always=_no_body_is_lost,
        relay=True,
        blobs=True,
    ),
    "collect": Scenario(
        _collect,
        ends("done", "m1", "m2"),
        _left_behind,
        ("sync",),
        check=_nothing_else_is_kept,
        always=_no_body_is_lost,
        blobs=True,
    ),
    "erase large": Scenario(
        _erase_large, ends("done", "m1", "m2"), _finished(*LARGE), ("sync",), always=_no_body_is_lost, blobs=True
    ),
    "prune": Scenario(
        _prune,
        ends("dead", "m2"),
        _forgettable,
        ("sync",),
        {"m2": 1},
        check=_only_the_dead_is_left,
        always=_the_dead_has_its_body,
        numbers=NOTHING_KEPT,
    ),
    "prune a partition": Scenario(
        _prune, {}, _a_whole_partition, ("sync",), check=_nothing_is_left, numbers=NOTHING_KEPT
    ),
    "prune bodies": Scenario(
        _prune,
        {**ends("done", "m1"), **ends("dead", "m2")},
        _finished(M1, DEAD),
        ("sync",),
        {"m2": 1},
        always=_the_dead_has_its_body,
        numbers=NO_BODIES,
    ),
    "take a turn": Scenario(
        _take_a_turn,
        {**ends("done", "m1"), **ends("dead", "m2")},
        _finished(M1, DEAD),
        ("sync",),
        {"m2": 1},
        always=_the_dead_has_its_body,
        numbers=NO_BODIES,
    ),
    "archive": Scenario(
        _archive,
        {**ends("done", "m1"), **ends("dead", "m2")},
        _finished(M1, DEAD),
        ("sync",),
        {"m2": 1},
        check=_in_the_archive,
        always=_in_the_archive_or_the_database,
        numbers=NO_BODIES,
    ),
    "erase": Scenario(
        _erase,
        {**ends("done", "a1", "m1"), **ends("discarded", "a2")},
        _personal,
        ("sync",),
        None,
        check=_erased,
    ),
    "fold the history": Scenario(_fold, {}, _counted_long_ago, ("sync",), always=_all_are_counted),
    "import ids": Scenario(_import_ids, {**ends("imported", "m1", "m2"), **ends("done", "m3")}, check=_no_case),
    "declare a source": Scenario(_declare, ends("done", "m1"), kinds=("sync",), check=_declared),
    "come unsigned": Scenario(_receive_unsigned, ends("done", "m1"), kinds=("sync",), check=_first_seen),
}

REPERTOIRE: dict[str, Scenario] = {**SCENARIOS, **RETENTION}
"""All there is to play."""
