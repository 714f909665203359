"""`python -m bench.redis`: receive and drain on Redis, beside the same commands by hand; writes docs/redis-store.md.

By hand is what somebody would send who has one process, no failures and no copies at the same time: pipelines of a
hundred messages in MULTI, with an id that is remembered, the body, the queue and the mark that it is done.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis

from onceward import Inbox, Message
from proof import report
from proof.__main__ import FIGURES
from tests.servers import RedisServer

PAGE = Path(__file__).parents[1] / "docs" / "redis-store.md"
RECORD = FIGURES / "redis-speed.json"
BEGIN, END = "<!-- made by `python -m bench.redis` -->\n", "<!-- end -->\n"
MESSAGES, GROUP, TURNS = 10_000, 100, 3
BODY = json.dumps({"text": "x" * 160}).encode()


def by_hand(client: Any) -> tuple[float, float]:
    """Messages a second, received and drained."""
    began = time.monotonic()
    for start in range(0, MESSAGES, GROUP):
        with client.pipeline(transaction=True) as pipe:
            for number in range(start, start + GROUP):
                pipe.hsetnx("hand:ids", f"1:1:m{number}", number)
                pipe.hset("hand:ledger", number, f"1:1:{time.time()}")
                pipe.hset("hand:bodies", number, BODY)
                pipe.zadd("hand:ready", {number: number})
            pipe.execute()
    received = time.monotonic()
    while seqs := client.zrange("hand:ready", 0, GROUP - 1):
        with client.pipeline(transaction=True) as pipe:
            pipe.zrem("hand:ready", *seqs)
            pipe.sadd("hand:held", *seqs)
            pipe.hmget("hand:bodies", *seqs)
            bodies = pipe.execute()[-1]
        with client.pipeline(transaction=True) as pipe:
            for seq, body in zip(seqs, bodies, strict=True):
                pipe.rpush("effects", json.loads(body)["text"])
                pipe.srem("hand:held", seq)
                pipe.hset("hand:ends", seq, f"done {time.time()}")
            pipe.execute()
    return MESSAGES / (received - began), MESSAGES / (time.monotonic() - received)


def onceward(url: str) -> tuple[float, float]:
    """The same, with all that an inbox keeps."""
    with closing(Inbox(url)) as inbox:
        inbox.migrate()

        @inbox.on("order.paid", group=GROUP)
        def take(message: Message, tx: Any) -> None:
            tx.rpush("effects", message.data["text"])

        inbox.drain()
        began = time.monotonic()
        for start in range(0, MESSAGES, GROUP):
            inbox.receive_many(
                [
                    {"source": "bench", "id": f"m{number}", "type": "order.paid", "body": BODY}
                    for number in range(start, start + GROUP)
                ]
            )
        received = time.monotonic()
        assert inbox.drain() == MESSAGES
        return MESSAGES / (received - began), MESSAGES / (time.monotonic() - received)


def measured() -> dict[str, Any]:
    """Both in turns, on one server; the medians."""
    hands, ours = [], []
    with RedisServer() as server, Redis.from_url(server.address) as client:
        for _ in range(TURNS):
            client.flushall()
            hands.append(by_hand(client))
            client.flushall()
            ours.append(onceward(server.address))
        kept: Any = client.info("memory")
        version = server.version
    figures: dict[str, Any] = {"redis": version, "messages": MESSAGES, "bytes_each": kept["used_memory"] // MESSAGES}
    for place, name in enumerate(("receive", "drain")):
        figures[name] = {
            "by_hand": round(median(one[place] for one in hands)),
            "onceward": round(median(one[place] for one in ours)),
        }
    return figures


def table(found: dict[str, Any]) -> str:
    """The figures as the page has them."""
    lines = ["| | by hand, a second | onceward, a second | of it |", "|---|---:|---:|---:|"]
    for name in ("receive", "drain"):
        hand, ours = found[name]["by_hand"], found[name]["onceward"]
        lines.append(f"| {name}, in groups of {GROUP} | {hand:,} | {ours:,} | {ours / hand:.2f} |")
    about = f"Redis {found['redis']}, appendfsync always, {found['messages']:,} messages, {found['date']}; "
    return (
        "\n".join([*lines, "", f"{about}{found['bytes_each']:,} bytes of the server's memory for each message."]) + "\n"
    )


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(json.loads(RECORD.read_text(encoding='utf-8')))}{END}{after}"


if __name__ == "__main__":
    report.write(str(RECORD), {"run": "redis", **measured()})
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
