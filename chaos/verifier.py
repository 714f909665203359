"""The judge: reads effects and ledger while the faults happen, and counts what is wrong when they have ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.load import Parcel
from onceward import Inbox

_DOUBLED = "SELECT id FROM effect GROUP BY id HAVING count(*) > 1"
_DISORDERED = (
    "SELECT id FROM (SELECT id, position, lag(position) OVER (PARTITION BY key ORDER BY at) AS before"
    " FROM effect WHERE key IS NOT NULL AND id LIKE 'p%') AS e WHERE position <= before"
)
_HANDED_OVER = (
    "SELECT count(*) FROM (SELECT pid, lag(pid) OVER (PARTITION BY key ORDER BY at) AS before"
    " FROM effect WHERE key IS NOT NULL) AS e WHERE pid <> before"
)
_QUEUE = "SELECT b.id, q.state FROM onceward_queue q JOIN onceward_body b ON b.seq = q.seq"


@dataclass
class Verdict:
    """The figures of a run."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Anything else that must not be: a doomed message with an effect, one dead that should not be."""

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.disordered or self.stuck or self.odd)


class Verifier:
    """Looks at the database past every fault in the network."""

    def __init__(self, url: str, parcels: list[Parcel]) -> None:
        self._url, self._parcels = url, parcels

    def glance(self) -> list[str]:
        """What must never be true, also in the middle of a run."""
        with Inbox(self._url) as inbox, inbox.transaction() as tx:
            return [
                f"{name}: {rows[:5]}"
                for name, query in (("doubled", _DOUBLED), ("disordered", _DISORDERED))
                if (rows := tx.execute(query).fetchall())
            ]

    def unfinished(self) -> list[str]:
        """What is neither finished nor dead."""
        with Inbox(self._url) as inbox, inbox.transaction() as tx:
            return [row[0] for row in tx.execute(_QUEUE).fetchall() if row[1] != "dead"]

    def judge(self) -> Verdict:
        """The figures, after the faults have ended and everything had time to come to its end."""
        with Inbox(self._url) as inbox, inbox.transaction() as tx:
            effects = Counter(row[0] for row in tx.execute("SELECT id FROM effect").fetchall())
            queue = dict(tx.execute(_QUEUE).fetchall())
            verdict = Verdict(
                doubled=[row[0] for row in tx.execute(_DOUBLED).fetchall()],
                disordered=[row[0] for row in tx.execute(_DISORDERED).fetchall()],
                stuck=[name for name, state in queue.items() if state != "dead"],
            )
            sent = sum(parcel.kind == "sends" for parcel in self._parcels)
            echoes = tx.execute("SELECT count(DISTINCT id) FROM effect WHERE id NOT LIKE 'p%'").fetchall()[0][0]
        for parcel in self._parcels:
            if parcel.effects and not effects[parcel.id]:
                verdict.lost.append(f"{parcel.id} ({parcel.kind}, {queue.get(parcel.id, 'not in the queue')})")
            if not parcel.effects and (effects[parcel.id] or queue.get(parcel.id) != "dead"):
                verdict.odd.append(
                    f"{parcel.id} is {parcel.kind}: {effects[parcel.id]} effects, {queue.get(parcel.id)}"
                )
        verdict.lost += ["an echo"] * (sent - echoes)
        if echoes > sent:
            verdict.odd.append(f"{echoes} echoes of {sent} messages")
        return verdict

    def seen(self) -> Counter[str]:
        """The hard states that the database remembers."""
        with Inbox(self._url) as inbox, inbox.transaction() as tx:

            def number(query: str) -> int:
                rows: list[Any] = tx.execute(query).fetchall()
                return int(rows[0][0])

            return Counter(
                {
                    "taken over after a death": number("SELECT count(*) FROM onceward_attempt WHERE kind = 'crash'"),
                    "failed and tried again": number("SELECT count(*) FROM onceward_attempt WHERE kind = 'error'"),
                    "dead": number("SELECT count(*) FROM onceward_queue WHERE state = 'dead'"),
                    "key handed over": number(_HANDED_OVER),
                    "published again": number(
                        "SELECT coalesce(sum(d.copies), 0) FROM onceward_duplicate d"
                        " JOIN onceward_body b ON b.seq = d.seq WHERE b.type = 'echo'"
                    ),
                }
            )
