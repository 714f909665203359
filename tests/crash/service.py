"""The service under test: an inbox whose handlers write one row each, in their message's transaction.

The table `effect` has no unique constraint, so an effect that happens twice is there twice. What a handler does
besides, its message says in `data["do"]`; what would end or stop the process is only done by a service that was
made a `victim`, so that the test process can finish what its victims left.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from onceward import Circuit, Inbox, Message, Receipt, Reject, Retry, RetryPolicy, Settings, StoreUnavailable
from onceward.message import Arguments
from tests.crash.points import FUSE

T = TypeVar("T")

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, Kind] = ("sync", "async")

POLICY = RetryPolicy(attempts=3, first=timedelta(0))
LATER = RetryPolicy(attempts=3, first=timedelta(seconds=0.3))
CAUTIOUS = Circuit(failures=1, pause=timedelta(microseconds=1))
"""Open after each failure, and over when anybody looks."""
SOURCE = "shop"
AUDIT = "audit"
_COLUMNS = "consumer, source, id, account, position, attempt, pid"


def message(name: str, kind: str = "plain", **data: Any) -> Arguments:
    """The arguments of a message; its body is its own for every name."""
    return {"source": SOURCE, "id": name, "type": kind, "data": {"name": name, **data}}


@dataclass(frozen=True, slots=True)
class Orders:
    """What the handlers of a process may do besides their effect."""

    victim: bool = False
    folder: str = ""
    """Where marks are left that outlive the process: what was published, whom it charged."""
    relay: bool = False
    """Whether outgoing messages are published by this process."""
    blobs: bool = False
    """Whether bodies of more than a thousand bytes are kept in its folder."""
    say: Callable[..., None] = lambda _word, **_more: None


def settings(**seconds: float) -> Settings:
    """Settings from numbers; a group lasts as long as it takes, so that slow machines group alike."""
    times = {name: timedelta(seconds=value) for name, value in seconds.items() if name != "group"}
    return Settings(**{"group_time": timedelta(minutes=1), **times}, group=int(seconds.get("group", 100)))  # type: ignore[arg-type]


class Service:
    """An inbox in one process, used as a program with `def` or with `async def` handlers would."""

    def __init__(
        self,
        url: str,
        kind: Kind = "sync",
        *,
        numbers: Settings | None = None,
        orders: Orders | None = None,
        handlers: bool = True,
    ) -> None:
        self._orders = orders or Orders()
        blobs = f"file://{self._orders.folder}/blobs" if self._orders.blobs else None
        self.inbox = Inbox(url, settings=numbers or settings(), blobs=blobs, blob_above=1000)
        self.kind = kind
        self._stood_still = False
        self._mark = "?" if url.startswith("sqlite") else "%s"
        self._runner: asyncio.Runner | None = None
        if handlers:
            self._register()

    @property
    def folder(self) -> str:
        """Where it leaves what outlives it."""
        return self._orders.folder

    def receive(self, **arguments: Any) -> Receipt:
        """Store a message."""
        if self.kind == "sync":
            return self.inbox.receive(**arguments)
        return self._run(self.inbox.areceive(**arguments))

    def receive_many(self, messages: list[Arguments]) -> list[Receipt]:
        """Store several."""
        if self.kind == "sync":
            return self.inbox.receive_many(messages)
        return self._run(self.inbox.areceive_many(messages))

    def process(self, **arguments: Any) -> Receipt:
        """Handle a message now."""
        if self.kind == "sync":
            return self.inbox.process(**arguments)
        return self._run(self.inbox.aprocess(**arguments))

    def process_many(self, messages: list[Arguments]) -> list[Receipt]:
        """Handle several now."""
        if self.kind == "sync":
            return self.inbox.process_many(messages)
        return self._run(self.inbox.aprocess_many(messages))

    def drain(self) -> int:
        """Run what is due."""
        return self.inbox.drain() if self.kind == "sync" else self._run(self.inbox.adrain())

    def poll_now(self, source: str) -> None:
        """Take a turn at a polled API."""
        if self.kind == "sync":
            self.inbox.ingress.poll_now(source)
        else:
            self._run(self.inbox.ingress.apoll_now(source))

    def has_charged(self) -> bool:
        """Whether the effect outside the database has happened, as a person would find out."""
        return Path(self._orders.folder, "charged").exists()

    def close(self) -> None:
        """Close its connections."""
        if self._runner is not None:
            self._runner.run(self.inbox.aclose())
            self._runner.close()
        self.inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def _register(self) -> None:
        handler = self._handle if self.kind == "sync" else self._handle_async
        batch = self._handle_batch if self.kind == "sync" else self._handle_batch_async
        on = self.inbox.on
        on("plain", retry=POLICY)(handler)
        on("keyed", key="account", retry=POLICY)(handler)
        on("loose", key="account", retry=POLICY, on_dead="continue")(handler)
        on("counted", key="account", retry=POLICY, sequence="position")(handler)
        on("bulk", retry=POLICY, batch=True)(batch)
        on("secret", retry=POLICY, keep_body=False)(handler)
        on("frail", retry=LATER, circuit=CAUTIOUS)(handler)
        on("grown", key="account", retry=POLICY, version=2)(handler)
        self.inbox.upcast("grown", 1)(lambda data: {**data, "account": data["user"]})
        on("staged", retry=POLICY, version=2)(handler)
        if not self._orders.victim:  # the release before
            on("staged", retry=POLICY)(handler)
        on("pair", retry=POLICY)(handler)
        on("pair", retry=POLICY, consumer=AUDIT)(handler)
        on("foreign", retry=POLICY, consumer=AUDIT)(handler)
        if self._orders.relay:
            sink = Paper(self._orders.folder) if self.kind == "sync" else AsyncPaper(self._orders.folder)
            self.inbox.add_sink("default", sink)

    def _handle(self, message: Message, tx: Any) -> dict[str, str]:
        do = message.data.get("do", {})
        self._obey(message, do, "before")
        while self._held(do, "before"):
            time.sleep(0.01)
        if how := do.get("once"):
            message.once("charge", partial(self._charge, message, how), idempotent=how == "again")
        with FUSE.passing("effect"):
            tx.execute(*self._effect(message))
        self._finish(message, do)
        while self._held(do, "after"):
            time.sleep(0.01)
        return {"name": message.id}

    async def _handle_async(self, message: Message, tx: Any) -> dict[str, str]:
        do = message.data.get("do", {})
        self._obey(message, do, "before")
        while self._held(do, "before"):  # noqa: ASYNC110 - the test speaks through a file
            await asyncio.sleep(0.01)
        if how := do.get("once"):
            await message.once("charge", partial(self._charge, message, how), idempotent=how == "again")
        with FUSE.passing("effect"):
            await tx.execute(*self._effect(message))
        self._finish(message, do)
        while self._held(do, "after"):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        return {"name": message.id}

    def _handle_batch(self, messages: list[Message], tx: Any) -> None:
        for message in messages:
            with FUSE.passing("effect"):
                tx.execute(*self._effect(message))
        for message in messages:
            self._finish(message, message.data.get("do", {}))

    async def _handle_batch_async(self, messages: list[Message], tx: Any) -> None:
        for message in messages:
            with FUSE.passing("effect"):
                await tx.execute(*self._effect(message))
        for message in messages:
            self._finish(message, message.data.get("do", {}))

    def _charge(self, message: Message, how: str) -> str:
        """An effect outside the database, which leaves a line each time it happens."""
        if how == "undone" and message.attempt == 1:
            raise Retry("it did not happen")
        with FUSE.passing("charge"):
            write_line(Path(self._orders.folder, "charged"), message.id)
        return "charged"

    def _effect(self, message: Message) -> tuple[str, tuple[Any, ...]]:
        values = (
            message.consumer,
            message.source,
            message.id,
            message.data.get("account"),
            message.data.get("position"),
            message.attempt,
            os.getpid(),
        )
        marks = ", ".join([self._mark] * len(values))
        return f"INSERT INTO effect ({_COLUMNS}) VALUES ({marks})", values

    def _finish(self, message: Message, do: dict[str, Any]) -> None:
        """What comes after the effect: send, fail, or what only a victim does."""
        for number in range(do.get("send", 0)):
            message.send("sent", {"number": number, **do.get("more", {})}, key=message.id)
        if message.attempt <= do.get("raise", 0):
            raise RuntimeError(f"attempt {message.attempt} of {message.id} fails")
        if "reject" in do:
            raise Reject("as its message asks")
        if "exhaust" in do:
            _exhaust_memory()
        self._obey(message, do, "after")

    def _obey(self, message: Message, do: dict[str, Any], moment: str) -> None:
        """What only a victim does, before or after the effect."""
        if not self._orders.victim:
            return
        if do.get("pause") == moment:
            self._stood_still = pause_once(self._orders, self.inbox) or self._stood_still
        if do.get("hold") == moment or (do.get("heir") == moment and not self._stood_still):
            self._orders.say("holding", id=message.id)
        if "stop" in do:
            self.inbox.stop()
        if "unavailable" in do:
            raise StoreUnavailable("as its message asks")
        if "die" in do and moment == "after":
            DEATHS[do["die"]]()

    def _held(self, do: dict[str, Any], moment: str) -> bool:
        """Whether the handler must not go on yet: until the test says so, or for ever."""
        held = do.get("hold") == moment or (do.get("heir") == moment and not self._stood_still)
        return self._orders.victim and held and not Path(self._orders.folder, "release").exists()


def write_line(path: Path, text: str) -> None:
    """Add a line to a file in one go; what is there stays there when the process dies."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


class Paper:
    """A sink: every message that is published is a line in a file."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, "published")

    def publish(self, message: Message) -> None:
        """Write its id down."""
        with FUSE.passing("publish"):
            write_line(self._path, message.id)


class AsyncPaper:
    """The same, awaited."""

    def __init__(self, folder: str) -> None:
        self._paper = Paper(folder)

    async def publish(self, message: Message) -> None:
        """Write its id down."""
        self._paper.publish(message)


def pause_once(orders: Orders, inbox: Inbox) -> bool:
    """Stop this process, as SIGSTOP or a frozen machine would; only the first that gets here. Whether it did.

    Not while one of its own threads has a transaction open, though: that would be another place to stand still at.
    """
    try:
        Path(orders.folder, "paused").touch(exist_ok=False)
    except FileExistsError:
        return False
    with ExitStack() as quiet:
        for worker in inbox._workers._running:
            for rounds in worker._membership._rounds:
                quiet.enter_context(rounds.busy)
        orders.say("pausing")
        # To this very thread: a signal to the process may reach another one first, while this one runs on.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    return True


def _exhaust_memory() -> None:
    """Ask for more memory than the process may have, and give the limit back."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


DEATHS: dict[str, Callable[[], Any]] = {
    "exit": lambda: os._exit(1),
    "exit-0": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    # What the kernel's OOM killer does to a process.
    "oom": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "whole-tree": lambda: os.killpg(0, signal.SIGKILL),
}
"""Ways in which a message kills the process that handles it."""
