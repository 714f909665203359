"""`inbox.lifespan`: workers inside an application, on real servers (R57)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message
from tests.contract.health import assert_healthy
from tests.leases import bury
from tests.waiting import wait_until
from tests.web.served import Served, uvicorn

KILLED = -signal.SIGKILL


class Application:
    """A served application and its database."""

    def __init__(self, url: str, folder: Path, served: Served) -> None:
        self.inbox, self.folder, self.served = Inbox(url, service="web"), folder, served

    def prepare(self) -> None:
        """Make the tables."""
        self.inbox.migrate()
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE effects (message_id text, note text)")

    def post(self, message_id: str) -> Any:
        """Have it receive a message."""
        return self.served.caller.post(f"/messages/{message_id}", b"", {}).json["status"]

    def effects(self) -> list[str]:
        """The messages that took effect, as often as they did."""
        with self.inbox.transaction() as tx:
            return [name for (name,) in tx.execute("SELECT message_id FROM effects ORDER BY message_id").fetchall()]

    def await_effects(self, *names: str) -> None:
        """Wait until these have taken effect, and no others."""
        wait_until(lambda: self.effects() == list(names), timeout=60, message=f"the effects of {names}")

    def hold(self) -> None:
        """Let the next handler wait in the middle of its message."""
        (self.folder / "hold").touch()
        (self.folder / "running").unlink(missing_ok=True)

    def await_running(self) -> None:
        """Wait until a handler is in the middle of its message."""
        wait_until((self.folder / "running").exists, timeout=60, message="the handler to run")

    def let_go(self) -> None:
        """Let it go on."""
        (self.folder / "hold").unlink()


@pytest.fixture
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    """An application: (framework, kind of handler, store), not started."""
    framework, kind, store, *more = request.param
    url = request.getfixturevalue(f"{store}_url")
    environment = {"WEB_FRAMEWORK": framework, "WEB_KIND": kind, "WEB_STORE": url, "WEB_FOLDER": str(tmp_path)}
    environment |= {"WEB_CONCURRENCY": more[0]} if more else {}
    with uvicorn("tests.web.program:app", tmp_path / "log", environment) as served:
        application = Application(url, tmp_path, served)
        yield application
        application.inbox.close()


@pytest.mark.parametrize(
    "application",
    [("fastapi", "async", "postgres"), ("starlette", "def", "sqlite"), ("litestar", "async", "sqlite")],
    indirect=True,
    ids="-".join,
)
def test_workers_run_while_the_application_serves(application: Application) -> None:
    """R57: once each, through copies, SIGTERM in the middle of a message, kill -9 in that of another, restarts."""
    application.prepare()
    served = application.served
    served.start()
    served.await_answer()
    assert [application.post("m1"), application.post("m1")] == ["accepted", "duplicate"]
    application.await_effects("m1")
    # SIGTERM: what runs is finished, then the application's own lifespan ends.
    application.hold()
    application.post("m2")
    application.await_running()
    assert served.process is not None
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "Shutting down" in served.log, timeout=60, message="the server to shut down")
    assert not (application.folder / "closed").exists(), "the resource was closed before the workers had stopped"
    application.let_go()
    assert served.process.wait(60) in (0, -signal.SIGTERM)
    assert (application.folder / "closed").exists()
    assert application.effects() == ["m1", "m2"]
    assert application.inbox.admin.workers() == []
    # kill -9 in the middle of a message: it runs again, once.
    served.start()
    served.await_answer()
    application.hold()
    application.post("m3")
    application.await_running()
    assert served.end(signal.SIGKILL) == KILLED
    application.let_go()
    assert application.effects() == ["m1", "m2"]
    served.start()
    assert served.process is not None
    bury(application.inbox, served.process.pid)
    served.await_answer()
    assert [application.post("m2"), application.post("m3")] == ["duplicate", "duplicate"]
    application.await_effects("m1", "m2", "m3")
    served.end(signal.SIGTERM)
    assert_healthy(application.inbox)


@pytest.mark.parametrize("application", [("fastapi", "def", "sqlite", "0")], indirect=True, ids=str)
def test_a_concurrency_of_0_only_receives(application: Application) -> None:
    application.prepare()
    application.served.start()
    application.served.await_answer()
    assert application.post("m1") == "accepted"
    application.served.end(signal.SIGTERM)
    assert application.effects() == []
    assert [row.status for row in application.inbox.admin.messages()] == ["due"]


@pytest.mark.parametrize(
    "application", [("fastapi", "async", "sqlite"), ("starlette", "def", "postgres")], indirect=True, ids="-".join
)
def test_workers_that_end_by_themselves_take_the_application_down(application: Application) -> None:
    """R57: no half is left that receives and never works; the log says why."""
    application.prepare()
    served = application.served
    served.start()
    served.await_answer()
    with application.inbox.transaction() as tx:
        tx.execute("ALTER TABLE onceward_queue RENAME TO elsewhere")
    assert served.process is not None
    assert served.process.wait(60) != 0
    assert "the workers of this application have failed" in served.log
    assert "onceward_queue" in served.log
    assert "Traceback" in served.log


@pytest.mark.parametrize("application", [("starlette", "async", "postgres")], indirect=True, ids="-".join)
def test_what_workers_cannot_start_with_stops_the_start(application: Application) -> None:
    """R57: here the tables are missing; the application never takes a request."""
    served = application.served
    served.start()
    assert served.process is not None
    assert served.process.wait(60) != 0
    assert "onceward migrate" in served.log
    assert "startup complete" not in served.log


async def test_an_application_may_start_again_and_around_is_around(sqlite_url: str) -> None:
    """As a test suite does with one application; the state of the application's own lifespan comes through."""
    events: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, str]]:
        events.append(f"open {app}")
        yield {"engine": "there"}
        events.append("close")

    inbox = Inbox(sqlite_url)
    inbox.migrate()

    @inbox.on("made")
    def made(message: Message, tx: Any) -> None:
        del tx
        events.append(f"handled {message.id}")

    made_lifespan = inbox.lifespan(concurrency=2, around=own)
    for number in (1, 2):
        async with made_lifespan(f"app {number}") as state:
            assert state == {"engine": "there"}
            await inbox.areceive(source="api", id=str(number), type="made", data={})
            await asyncio.to_thread(wait_until, partial(events.__contains__, f"handled {number}"))
    assert events == ["open app 1", "handled 1", "close", "open app 2", "handled 2", "close"]
    for wrong in ({"concurrency": -1}, {"concurrency": "4"}, {"around": 1}):
        with pytest.raises(ConfigurationError, match="lifespan"):
            inbox.lifespan(**wrong)


async def test_an_application_starts_while_the_database_is_away() -> None:
    """It goes on to receive, which answers that the database is away, or spools."""
    inbox = Inbox("postgresql://nobody@127.0.0.1:1/nothing")
    inbox.on("made")(lambda message, tx: None)  # noqa: ARG005 - never runs
    async with inbox.lifespan(concurrency=1)(None):
        pass


async def test_an_error_of_the_application_stops_the_workers(sqlite_url: str) -> None:
    inbox = Inbox(sqlite_url)
    inbox.migrate()
    inbox.on("made")(lambda message, tx: None)  # noqa: ARG005 - never runs
    with pytest.raises(ZeroDivisionError):
        async with inbox.lifespan(concurrency=1)(None):
            raise ZeroDivisionError
    assert inbox.admin.workers() == []
    inbox.close()
