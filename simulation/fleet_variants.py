"""Known-bad variants of what several programs do together: deployments, joins, services, relays, spools, failovers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from onceward.domain import identity
from onceward.domain.identity import stored_id
from onceward.integrations.idempotency import IdempotencyKeys
from onceward.runtime import spool
from onceward.runtime.spool import Spool
from onceward.steps import dispatch, join, membership
from onceward.steps.context import know_names
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.isolation import Isolation
from onceward.stores.moves.ledger import Known
from simulation.sabotage import nothing, replaced
from simulation.themes import DEPLOYING, FAILOVER, HANGING_SINK, JOINING, SERVICES, SPOOLING, VERSIONS, Theme
from simulation.variants import CATALOG, Variant

LASTING = replace(
    FAILOVER,
    kinds=("plain", "keyed", "teller"),
    faults={**FAILOVER.faults, "failover": 0.01, "shutdown": 0.0, "crash": 0.0, "stop_resume": 0.0},
    deploying=False,
)
"""Failovers, and processes that live through all of them: none starts with what the database knows."""
WAITING = replace(JOINING, kinds=("latest", "handed"), copies=2, twins=0.6)
"""Messages that wait for a consumer, and come again and again, now and then with other bytes."""
DEADLY = Theme(("plain",), {"crash": 0.03, "clock_jump": 0.0, "operators": 0.0}, inline=0.0, trouble=True)
Patch = Callable[[], AbstractContextManager[Any]]
row_original = spool.row
awaiting_original = dispatch._awaiting


def _inside(context: Any, names: Any, types: Any, _apart: Any) -> Generator[Any, Any, None]:
    """Subscriptions and names are written in the caller's transaction."""
    yield from introduce(context, types)
    yield from know_names(context, context.cache, names)


def _one_at_a_time(relay: Any) -> Generator[Any, Any, list[str]]:
    if relay.busy:
        yield from ()
        return []
    return (yield from awaiting_original(relay))[:1]


class _AnybodysKeys(IdempotencyKeys):
    """Requests of all services under one type and consumer."""

    def __init__(self, app: Any, *, inbox: Any, **options: Any) -> None:
        service, inbox.context.service = inbox.context.service, "anybody"
        super().__init__(app, inbox=inbox, **options)
        inbox.context.service = service


FLEET: tuple[Variant, ...] = (
    Variant(
        "receive under an outdated catalog",
        ("left out",),
        edits={"receive": (CATALOG, "WHERE coalesce(:catalog, 1) IS NOT NULL")},
        theme=DEPLOYING,
        seed=104,
    ),
    Variant(
        "what is not placed yet is unknown to its consumers",
        ("false mismatch", "accepted twice", "order"),
        edits={"known_unplaced": ("w.state = 'unhandled'", "w.state = 'waiting'")},
        theme=WAITING,
        seed=51,
    ),
    Variant(
        "what waits with two services keeps its later place",
        ("order",),
        edits={"bring_forward": ("state = 'unhandled'", "state = 'waiting'")},
        theme=Theme(("late", "handed"), {"crash": 0.0, "operators": 0.0}, copies=2, services=SERVICES.services),
        seed=159,
    ),
    Variant(
        "a version is not left to the workers that know it",
        ("version known elsewhere",),
        edits={"handled_elsewhere": ("alive_until > :now", ":now IS NULL")},
        theme=VERSIONS,
        seed=8,
    ),
    Variant(
        "the catalog's version is a counter",
        ("left out", "loss", "nameless", "effect without ledger"),
        edits={"touch_catalog": ("random() & 9007199254740991", "version + 1")},
        theme=replace(FAILOVER, faults={**FAILOVER.faults, "failover": 0.02, "crash": 0.0}),
        seed=361,
    ),
    Variant(
        "a worker number is given again",
        ("shared number",),
        edits={"add_worker": ("VALUES (:worker,", "VALUES ((SELECT coalesce(max(id), 0) + 1 FROM o_worker),")},
        theme=FAILOVER,
        seed=4,
    ),
    Variant(
        "a claim that a failover brought back stays",
        ("stuck",),
        patch=lambda: replaced((membership.unclaim_strays, nothing)),
        theme=LASTING,
        seed=6,
    ),
    Variant(
        "nobody looks whether a failover took a subscription back",
        ("stuck",),
        patch=lambda: replaced((stay_introduced, introduce)),
        theme=LASTING,
        seed=56,
    ),
    Variant(
        "a join does not hold the catalog",
        ("left out",),
        edits={"hold_catalog": ("pg_advisory_xact_lock_shared(hashtext('o_catalog'), 0)", "1")},
        theme=JOINING,
        store="postgres",
        seed=9,
    ),
    Variant(
        "a join stores by the view of its beginning",
        ("left out",),
        patch=lambda: replaced((join._keep_to_its_view, nothing)),
        theme=replace(JOINING, kinds=("growing",)),
        store="postgres",
        seed=24,
    ),
    Variant(
        "a program is introduced inside the caller's transaction",
        ("stalled",),
        patch=lambda: replaced((join.prepare, _inside)),
        theme=JOINING,
        store="postgres",
        seed=1,
    ),
    Variant(
        "services share their requests",
        ("another's answer",),
        patch=lambda: replaced((IdempotencyKeys, _AnybodysKeys)),
        theme=SERVICES,
        seed=1,
    ),
    Variant(
        "an outgoing id without its destination",
        ("send vanished",),
        patch=lambda: patch.object(identity, "stored_id", lambda name, _=None: stored_id(name)),
        theme=SERVICES,
    ),
    Variant(
        "what is sent under a known id is not compared",
        ("send vanished",),
        patch=lambda: patch.object(Known, "is_same", lambda *_: True),
        theme=SERVICES,
    ),
    Variant(
        "the relay claims for every destination",
        ("wrong sink",),
        edits={"claim_outgoing": ("AND destination = :destination", "AND :destination IS NOT NULL")},
        theme=HANGING_SINK,
    ),
    Variant(
        "the relay serves one destination after the other",
        ("held up",),
        patch=lambda: replaced((awaiting_original, _one_at_a_time)),
        theme=HANGING_SINK,
        seed=106,
    ),
    Variant(
        "nobody looks whether others wait in the spool",
        ("order",),
        patch=lambda: patch.object(Spool, "is_empty", property(lambda _: True)),
        theme=SPOOLING,
        seed=2,
    ),
    Variant(
        "the spool forgets that an id is not signed",
        ("echo",),
        patch=lambda: replaced((row_original, lambda one: row_original(one._replace(echo_window=None)))),
        theme=SPOOLING,
        seed=2,
    ),
    Variant(
        "an isolated message does not wait until it is alone",
        ("not alone",),
        patch=lambda: patch.object(Isolation, "enter_alone", Isolation.enter),
        theme=DEADLY,
        seed=6,
    ),
    Variant(
        "isolated messages stay isolated for ever",
        ("endless suspicion",),
        edits={"take_over": ("ELSE 2 END", "ELSE isolation END"), "claim_isolated": ("LIMIT :limit", "LIMIT 3")},
        theme=DEADLY,
        seed=50,
    ),
)
