"""The variants that live in SQL, in PostgreSQL's words: the same rules broken on a server with real locks.

Left out are those whose rule is in no text of a statement here: the unique key of a table, the place and the time of a
scheduled message (three parts of one claim), and bodies, which go with their partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from simulation.variants import Variant

_CLAIM = "AND (worker, token) IS NOT DISTINCT FROM (%(worker)s::bigint, %(token)s::bigint)"
_EARLIER = "WHERE earlier OR busy OR unplaced"
_RECENT = "AND r.finished_at >="
_CATALOG = "WHERE coalesce((SELECT version FROM o_catalog WHERE one) = %(catalog)s::bigint, true)"


class Words(NamedTuple):
    """How to break a rule on PostgreSQL."""

    edits: dict[str, tuple[str, str]] | None = None
    """None where the text is that of SQLite, letter for letter."""
    seed: int = 0
    """One that is known to show it."""


WORDS = {
    "stepping back undoes nothing": Words(seed=6),
    "settle without the guard": Words({"settle": (_CLAIM, "")}, seed=5),
    "finish by id only": Words({"finish": (_CLAIM, "")}, seed=5),
    "postpone without the guard": Words({"postpone": (_CLAIM, "")}, seed=17),
    "unclaim without the guard": Words({"unclaim": (_CLAIM, "")}, seed=13),
    "order without the head rule": Words({"park": (_EARLIER, "WHERE false")}),
    "the head rule overlooks messages that wait for a retry": Words(seed=11),
    "the head rule overlooks other claims": Words({"park": (_EARLIER, "WHERE earlier OR unplaced")}, seed=22),
    "nobody promotes": Words({"promote": ("WHERE seq = ANY", "WHERE false AND seq = ANY")}, seed=2),
    "a crash is charged to the whole batch": Words({"take_over": ("crashes + %(charge)s", "crashes + 1")}, seed=1),
    "crashes without a limit": Words({"take_over": ("crashes + %(charge)s >= %(crash_limit)s", "false")}, seed=6),
    "take-over leaves the worker row": Words({"forget_worker": ("WHERE", "WHERE false AND")}),
    "take-over leaves the claims": Words({"take_over": ("WHERE worker = %(worker)s", "WHERE false")}, seed=10),
    "a scheduled message holds its key before it is due": Words(seed=3),
    "claim takes claimed rows": Words(seed=2),
    "claim without the worker's own row": Words(
        {"claim": ("SELECT id FROM o_worker WHERE id = %(worker)s FOR KEY SHARE", "SELECT 1 AS id")}, seed=12
    ),
    "dedupe without the source": Words(
        {
            "receive": (
                _CATALOG,
                f"{_CATALOG} AND (i.consumer, i.stored_id) NOT IN (SELECT consumer, id FROM o_ledger)",
            ),
            "known": (
                "(consumer, source, id) = (i.consumer, i.source, i.stored_id)",
                "(consumer, id) = (i.consumer, i.stored_id)",
            ),
        },
        seed=2,
    ),
    "redrive of what is not dead": Words(seed=4),
    "discard of what is running": Words(seed=10),
    "a gap has no deadline": Words(
        {"hold": ("SET state = 'waiting', due_at =", "SET state = 'waiting', due_at = NULL *")}, seed=8
    ),
    "inline work does not look at its key": Words(
        {
            "lock_free_keys": ("LIMIT 1) IS NULL", "LIMIT 1) IS NULL OR true"),
            "busy_keys": ("LIMIT 1) IS NOT NULL", "LIMIT 1) IS NOT NULL AND false"),
        },
        seed=23,
    ),
    "retention forgets what is not finished": Words(
        {"forget_messages": ("AND NOT EXISTS (SELECT FROM o_queue q WHERE q.seq = l.seq OFFSET 0)", "")}, seed=3
    ),
    "retention forgets what came long ago and has just been finished": Words(
        {"forget_messages": (_RECENT, "AND false AND r.finished_at >=")}
    ),
    "retention forgets what is in an open case": Words(seed=1),
    "deregistering keeps the claims": Words({"unclaim_all": ("WHERE", "WHERE false AND")}, seed=36),
    "what is not placed yet is unknown to its consumers": Words(seed=20),
    "a version is not left to the workers that know it": Words(
        {"handled_elsewhere": ("WHERE NOT inline AND", "WHERE false AND NOT inline AND")}, seed=2
    ),
    "the relay claims for every destination": Words({"claim_outgoing": ("AND destination = %(destination)s", "")}),
}


def in_postgres(variants: Iterable[Variant]) -> Iterator[Variant]:
    """Those that have words here."""
    for one in variants:
        words = WORDS.get(one.name)
        if words is not None:
            yield replace(one, store="postgres", edits=words.edits or one.edits, seed=words.seed)
