"""The thread beside the workers: each task in turn, by one process at a time, whatever one of them raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import pytest

from onceward import Inbox, Settings
from onceward.errors import StoreUnavailable
from onceward.retention.maintenance import Maintenance

RARELY = Settings(maintenance=timedelta(hours=1))
Task = Callable[[], bool]


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    with Inbox(sqlite_url, settings=RARELY) as inbox:
        inbox.migrate()
        yield inbox


def maintenance(inbox: Inbox, tasks: Mapping[str, Task]) -> Maintenance:
    return Maintenance(inbox.retention._context, inbox.retention._store, tasks)


def set_off(event: threading.Event) -> bool:
    event.set()
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "onceward-maintenance"]


def test_what_has_more_to_do_goes_on_at_once_and_then_rests(inbox: Inbox) -> None:
    """It gives its turn back, so that the next one is not an hour later; at the end it keeps it."""
    left, over, others = [False, False, True], threading.Event(), threading.Event()

    def task() -> bool:
        done = left.pop(0)
        if done:
            over.set()
        return done

    with maintenance(inbox, {"archive": task}).during():
        assert over.wait(30)
        assert len(threads()) == 1
    assert (left, threads()) == ([], [])
    with maintenance(inbox, {"archive": task, "collect": lambda: set_off(others)}).during():
        assert others.wait(30), "the tasks of another process are played in turn"
    assert left == [], "this one had its turn within the hour"


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (OSError("disk full"), logging.ERROR, "archive failed; it will be tried again"),
        (StoreUnavailable("away"), logging.WARNING, "archive is postponed: away"),
    ],
)
def test_what_raises_is_said_and_keeps_no_other_from_its_turn(
    inbox: Inbox, caplog: pytest.LogCaptureFixture, error: Exception, level: int, said: str
) -> None:
    turns, over = list[str](), threading.Event()

    def broken() -> bool:
        turns.append("archive")
        raise error

    def fine() -> bool:
        turns.append("collect")
        over.set()
        return True

    with maintenance(inbox, {"archive": broken, "collect": fine}).during():
        assert over.wait(30)
    assert turns == ["archive", "collect"]
    assert [(one.levelno, one.getMessage()) for one in caplog.records if "archive" in one.getMessage()] == [
        (level, said)
    ]


@pytest.mark.parametrize("settings", [RARELY, Settings(maintenance=None)])
def test_without_a_task_or_where_it_is_off_there_is_no_thread(sqlite_url: str, settings: Settings) -> None:
    tasks = {} if settings.maintenance else {"archive": lambda: True}
    with Inbox(sqlite_url, settings=settings) as inbox, maintenance(inbox, tasks).during():
        assert threads() == []
