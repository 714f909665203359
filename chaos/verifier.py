"""The verdict: reads effects and ledger while the faults happen, and counts what is wrong when they have ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.load import Parcel
from chaos.releases import BREAKING, NEW, OLD
from onceward import Inbox

_DOUBLED = "SELECT id FROM effect GROUP BY id HAVING count(*) > 1"
_DISORDERED = (
    "SELECT id FROM (SELECT id, position, lag(position) OVER (PARTITION BY account ORDER BY at) AS earlier"
    " FROM effect WHERE account IS NOT NULL AND id LIKE 'p%') AS e WHERE position <= earlier"
)
_HANDED_OVER = (
    "SELECT count(*) FROM (SELECT pid, lag(pid) OVER (PARTITION BY account ORDER BY at) AS earlier"
    " FROM effect WHERE account IS NOT NULL) AS e WHERE pid <> earlier"
)
_BETWEEN_RELEASES = (
    "SELECT count(*) FROM (SELECT code, lag(code) OVER (PARTITION BY account ORDER BY at) AS earlier"
    " FROM effect WHERE account IS NOT NULL) AS e WHERE code <> earlier"
)
_FINISHED_ELSEWHERE = (
    "SELECT count(*) FROM onceward_attempt a JOIN onceward_body b ON b.seq = a.seq JOIN effect e ON e.id = b.id"
    " WHERE e.code <> a.code_version"
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

    def verdict(self) -> Verdict:
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
        return self._numbers(
            {
                "taken over after a death": "SELECT count(*) FROM onceward_attempt WHERE kind = 'crash'",
                "failed and tried again": "SELECT count(*) FROM onceward_attempt WHERE kind = 'error'",
                "dead": "SELECT count(*) FROM onceward_queue WHERE state = 'dead'",
                "key handed over": _HANDED_OVER,
                "published again": "SELECT coalesce(sum(d.copies), 0) FROM onceward_duplicate d"
                " JOIN onceward_body b ON b.seq = d.seq WHERE b.type = 'echo'",
            }
        )

    def skew(self) -> Counter[str]:
        """The hard states of releases that share tables, after the last rollout: what each of them has finished."""
        finished = "SELECT coalesce(sum(messages), 0) FROM onceward_run WHERE"
        return self._numbers(
            {
                f"finished by {OLD}": f"{finished} code_version = '{OLD}' AND area IS NULL",
                f"finished by {NEW}": f"{finished} code_version = '{NEW}' AND area = '{NEW}'",
                f"finished by {BREAKING}": f"{finished} code_version = '{BREAKING}' AND area = '{BREAKING}'",
                "key handed over to another release": _BETWEEN_RELEASES,
                "failed or crashed in one release, finished by another": _FINISHED_ELSEWHERE,
            }
        )

    def _numbers(self, queries: dict[str, str]) -> Counter[str]:
        with Inbox(self._url) as inbox, inbox.transaction() as tx:
            found: dict[str, list[Any]] = {name: tx.execute(query).fetchall() for name, query in queries.items()}
        return Counter({name: int(rows[0][0]) for name, rows in found.items()})
