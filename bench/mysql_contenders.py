"""`python -m bench.mysql_contenders KIND ...`: one process of a race on MySQL: the textbook's loop, and pure SQL."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from bench.contenders import in_threads
from bench.inboxes import ONE
from bench.messages import messages
from bench.mysql import connected, names
from bench.race import take_part
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import PlainConnection


def textbook(url: str, count: str, threads: str) -> None:
    """The inbox of the articles: one transaction for each message; insert the id, apply, commit."""
    deliveries = messages(int(count), "update")
    connections = [PlainConnection(**Address.of(url).arguments()) for _ in range(int(threads))]
    take_part(lambda: Counter(in_threads(int(threads), deliveries, _textbook, connections)))


def _textbook(message: dict[str, Any], connection: PlainConnection) -> str:
    inserted = "INSERT IGNORE INTO textbook (id, payload, processed_at) VALUES (%s, %s, now(6))"
    fresh = connection.execute(inserted, (message["id"], json.dumps(message["data"]))).rowcount == 1
    if fresh and connection.execute(ONE["mysql"], (message["data"]["row"],)).rowcount != 1:
        raise LookupError(message["data"]["row"])
    connection.commit()
    return "accepted" if fresh else "duplicate"


def drain(url: str, me: str, group: str, claim: str) -> None:
    """Claim and finish groups of onceward's own backlog, by a procedure; the bodies travel."""
    connection, groups = connected(url), int(claim) // int(group)

    def work() -> int:
        calls = token = 0
        while True:
            last, found = token, 0
            for part in range(groups):  # what the claim before has taken; with the last of it the next claim
                token += part == groups - 1
                found += len(
                    connection.execute("CALL drain(%s, %s, %s, %s, %s)", (me, last, token, group, claim)).fetchall()
                )
                calls += 1
            if not found:
                return calls

    take_part(work)


def receive_many(url: str, me: str, calls: str) -> None:
    """Store batches by a procedure."""
    connection, known = connected(url), names(url)
    who = (known["source"], known["consumer"], known["nothing"])

    def work() -> int:
        for call in range(int(calls)):
            connection.execute("CALL receive_many(%s, %s, %s, %s, %s)", (me, call * 500, *who))
        return int(calls) * 500

    take_part(work)


KINDS = (textbook, drain, receive_many)

if __name__ == "__main__":
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]](*sys.argv[2:])
