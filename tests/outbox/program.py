"""The programs that these tests start, stop and kill; each is a function of its job."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from onceward import Inbox, Message, RetryPolicy, Settings
from tests.contract.behaviour import Do, Sql, Steps, wrote
from tests.contract.harness import Shop
from tests.nursery import Job, append
from tests.outbox.post import AT_ONCE, FileSink, into


def settings() -> Settings:
    """Quick ones: a group lasts as long as it takes."""
    return Settings(poll=timedelta(seconds=0.05), group_time=timedelta(minutes=1))


def relay(job: Job) -> None:
    """Publish to a file until told to stop."""
    given = job.arguments
    with Inbox(given["url"], settings=settings()) as inbox:
        for name in given["sinks"]:
            sink = FileSink(given["path"], deadly=given.get("deadly", ()), every=given.get("every", 0))
            inbox.add_sink(name, sink, retry=AT_ONCE)
        job.say("ready")
        inbox.run(process=given.get("process", ""))


def forward(job: Job) -> None:
    """One side of a loop: handle what comes in, send it on to the other inbox."""
    given = job.arguments
    shop = Shop(given["url"], given["kind"], migrate=False, settings=settings(), prefix=given["prefix"])
    register(shop, given["table"], sends=bool(given.get("next")))
    other = None
    if given.get("next"):
        other = Inbox(given["next"]["url"], prefix=given["next"]["prefix"], settings=settings())
        shop.inbox.add_sink("default", into(other, source="loop"), retry=AT_ONCE)
    job.say("ready")
    shop.inbox.run(process=given.get("process", ""), concurrency=2)
    if other is not None:
        other.close()
    shop.inbox.close()


def register(shop: Shop, table: str, *, sends: bool) -> None:
    """The handler of one side of a loop: a row in its own table, and the message sent on."""

    def behaviour(message: Message) -> Steps:
        yield Sql(f"INSERT INTO {table} (name, account) VALUES (%s, %s)", (message.data["name"], message.key))
        if sends:
            message.send("step", message.data, key=message.key)

    shop.handle("step", behaviour, key="k", retry=RetryPolicy(attempts=50, first=timedelta(0)))


def once(job: Job) -> None:
    """Handle messages whose handler makes a call once, and dies where its message says."""
    given = job.arguments
    shop = Shop(given["url"], given["kind"], migrate=False, settings=settings())
    shop.handle("charge", calling(given["path"], die=given.get("die", "")), **given.get("options", {}))
    job.say("ready")
    if given.get("inline"):
        shop.process(given["inline"], "charge")
    else:
        shop.inbox.run(process=given.get("process", ""))


def calling(path: str, *, die: str = "", idempotent: bool = False) -> Any:
    """A behaviour that makes one external call, which is a line in a file, and dies before, in or after it."""

    def call(message: Message) -> Any:
        if die == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        append(path, {"id": message.id, "key": message.idempotency_key("charge")})
        if die == "in":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"charge": f"ch_{message.id}"}

    def behaviour(message: Message) -> Steps:
        answer = yield Do(lambda _: message.once("charge", lambda: call(message), idempotent=idempotent))
        if die == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        yield wrote(message, answer["charge"] if answer else "none")

    return behaviour
