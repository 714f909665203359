"""The variants that live in SQL, in MySQL's words, played on MariaDB; and those of rules that only MySQL has to state.

Left out are those whose rule is in no text of a statement here (the unique key of a table), those that few histories
show, and those that another rule makes good: a claim that takes claimed rows is kept from it by the locks of this
server (`mutants/mysql.py` plays it without them), and claims that a worker leaves behind come free like all whose
worker is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulation.postgres_variants import Words
from simulation.variants import KEYED, Variant

_FIRST = "SELECT (e.place, e.seq) < (m.place, m.seq) FROM o_queue e WHERE e.key_hash = m.key_hash AND NOT"
_REDRIVEN = "key_hash = :key_hash WHERE seq = :seq AND state = 'dead'"

WORDS = {
    "stepping back undoes nothing": Words(seed=6),
    "settle without the guard": Words(),
    "finish by id only": Words(seed=4),
    "postpone without the guard": Words(seed=9),
    "unclaim without the guard": Words(seed=64),
    "order without the head rule": Words(
        {"park": (_FIRST, _FIRST.replace("(e.place, e.seq) < (m.place, m.seq)", "FALSE"))}, seed=2
    ),
    "the head rule overlooks messages that wait for a retry": Words(
        {"park": (_FIRST, _FIRST.replace(" AND NOT", " AND e.state = 'ready' AND NOT"))}, seed=5
    ),
    "the head rule overlooks other claims": Words(
        {"park": ("WHERE n.worker IS NOT NULL AND n.key_hash", "WHERE FALSE AND n.key_hash")}, seed=29
    ),
    "nobody promotes": Words({"promote": ("SET q.state = 'ready'", "SET q.state = q.state")}, seed=2),
    "a crash is charged to the whole batch": Words(seed=1),
    "crashes without a limit": Words(seed=6),
    "take-over leaves the worker row": Words(),
    "take-over leaves the claims": Words(seed=16),
    "a scheduled message joins its key where it came": Words(
        {"claim": ("UPDATE o_queue SET place = :place", "UPDATE o_queue SET place = seq")}, seed=37
    ),
    "a scheduled message holds its key before it is due": Words(
        {"park": ("ORDER BY e.place, e.seq LIMIT 1", "AND e.seq < m.seq ORDER BY e.seq LIMIT 1")}, seed=37
    ),
    "a scheduled message runs before its time": Words(
        {"claim": ("AND free_due <=", "AND free_due - 1500000 <=")}, seed=3
    ),
    "claim without the worker's own row": Words(
        {"claim": ("SELECT id FROM o_worker WHERE id = :worker LOCK IN SHARE MODE", "SELECT 1")}, seed=15
    ),
    "redrive of what is not dead": Words(
        {
            "redrive": (
                _REDRIVEN,
                _REDRIVEN.replace("= 'dead'", "IN ('dead', 'retry')").replace(
                    ":key_hash W", ":key_hash, due_at = NULL W"
                ),
            )
        },
        seed=3,
    ),
    "discard of what is running": Words({"discard": ("token IS NULL", "seq IS NOT NULL")}, seed=8),
    "a gap has no deadline": Words(
        {"hold": ("SET state = 'waiting', due_at =", "SET state = 'waiting', due_at = NULL *")}, seed=8
    ),
    "inline work does not look at its key": Words(
        {"busy_keys": ("q.key_hash = i.key_hash AND q.place <", "FALSE AND q.place <")}, seed=4
    ),
    "retention forgets what is not finished": Words(
        {"forget_messages": ("AND NOT EXISTS (SELECT 1 FROM o_queue q WHERE q.seq = l.seq)", "")}, seed=3
    ),
    "retention forgets what came long ago and has just been finished": Words(
        {"forget_messages": ("AND r.finished_at >=", "AND FALSE AND r.finished_at >=")}, seed=3
    ),
    "retention drops the bodies of what is not finished": Words(
        {"drop_bodies": ("FROM o_queue q WHERE q.seq", "FROM o_queue q WHERE FALSE AND q.seq")}, seed=1
    ),
    "retention forgets what is in an open case": Words(seed=7),
    "what is not placed yet is unknown to its consumers": Words(seed=1),
    "a version is not left to the workers that know it": Words(
        {"handled_elsewhere": ("WHERE NOT inline AND", "WHERE FALSE AND NOT inline AND")}, seed=2
    ),
    "a join does not hold the catalog": Words({"hold_catalog": ("LOCK IN SHARE MODE", "")}, seed=3),
    "a join stores by the view of its beginning": Words(seed=2),
    "a program is introduced inside the caller's transaction": Words(),
    "the relay claims for every destination": Words(
        {"claim_outgoing": ("WHERE destination = :destination", "WHERE destination IS NOT NULL")}
    ),
}

OWN = (
    Variant(
        "MySQL: a claim locks no keys",
        ("two holders", "order", "stuck"),
        edits={
            "claim": (
                "INSERT INTO o_key_lock (key_hash) VALUES {values keys} ON DUPLICATE KEY UPDATE uses = uses + 1",
                "DO 0",
            )
        },
        theme=KEYED,
        seed=7,
    ),
    Variant(
        "MySQL: who removes the first of a key locks it for nobody",
        ("two holders", "order", "stuck"),
        edits={
            "lock_keys": (
                "INSERT INTO o_key_lock (key_hash) VALUES {values key_hashes} ON DUPLICATE KEY UPDATE uses = uses + 1",
                "DO 0",
            )
        },
        theme=KEYED,
        seed=40,
    ),
)


def in_mysql(variants: Iterable[Variant]) -> Iterator[Variant]:
    """Those that have words here, and those that only stand here."""
    for one in variants:
        words = WORDS.get(one.name)
        if words is not None:
            yield replace(one, store="mariadb", edits=words.edits or one.edits, seed=words.seed)
    for one in OWN:
        yield replace(one, store="mariadb")
