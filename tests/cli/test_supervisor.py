"""The supervisor: processes that die, are killed, hang or lose their parent, and what becomes of their messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from onceward import Inbox, Settings, StoreUnavailable
from onceward.runtime import supervisor
from onceward.runtime.supervisor import Supervisor, cause_of_death
from tests.cli.conftest import Shop, alive
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pids(shop: Shop) -> set[int]:
    return {worker.pid for worker in shop.inbox.admin.workers()}


def holder(shop: Shop) -> int:
    """The process that has messages in hand."""
    return next((worker.pid for worker in shop.inbox.admin.workers() if worker.holds), 0)


def gone(processes: set[int]) -> bool:
    return not any(alive(pid) for pid in processes)


def test_a_killed_childs_messages_are_taken_over_at_once(any_shop: Shop) -> None:
    any_shop.start("--processes", "2")
    any_shop.wait(lambda: len(pids(any_shop)) == 2)
    seq = any_shop.deliver("held", 1)
    any_shop.wait(lambda: any_shop.holds(1))
    before = pids(any_shop)
    victim = holder(any_shop)
    os.kill(victim, signal.SIGKILL)
    any_shop.go()
    any_shop.wait(lambda: any_shop.effects() == ["held-1"])
    detail = any_shop.inbox.admin.message(seq)
    assert detail is not None
    (crash,) = detail.history
    assert (crash.kind, crash.charged) == ("crash", True)
    assert f"process {victim} on " in crash.error
    assert "was killed by signal 9 (SIGKILL)" in crash.error
    any_shop.wait(lambda: len(pids(any_shop) - {victim}) == 2)
    assert before - {victim} < pids(any_shop)  # the other one was left alone


def test_a_message_that_kills_is_dead_after_three_crashes_and_its_neighbours_are_done(sqlite_shop: Shop) -> None:
    for number in range(3):
        sqlite_shop.deliver("plain", number)
    killer = sqlite_shop.deliver("killer", 1)
    for number in range(3, 6):
        sqlite_shop.deliver("plain", number)
    sqlite_shop.start("--processes", "2")
    sqlite_shop.wait(lambda: sqlite_shop.inbox.admin.stats().dead == 1)
    sqlite_shop.wait(lambda: sqlite_shop.effects() == [f"plain-{number}" for number in range(6)])
    detail = sqlite_shop.inbox.admin.message(killer)
    assert detail is not None
    assert (detail.status, detail.crashes) == ("dead", 3)
    assert [crash.charged for crash in detail.history].count(True) == 3
    charged = sqlite_shop.ask("SELECT DISTINCT seq FROM onceward_attempt WHERE charged")
    assert charged == [(killer,)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_every_child(sqlite_shop: Shop, number: signal.Signals) -> None:
    parent = sqlite_shop.start("--processes", "2", "--concurrency", "2")
    sqlite_shop.wait(lambda: len(pids(sqlite_shop)) == 2)
    sqlite_shop.deliver("held", 1)
    sqlite_shop.wait(lambda: sqlite_shop.holds(1))
    children = pids(sqlite_shop)
    parent.send_signal(number)
    sqlite_shop.go()
    assert parent.wait(timeout=30) == 0, sqlite_shop.log()
    assert gone(children)
    assert sqlite_shop.effects() == ["held-1"]
    assert sqlite_shop.inbox.admin.workers() == []
    assert sqlite_shop.inbox.admin.stats().failures == 0


def test_children_stop_gracefully_when_their_parent_is_killed(sqlite_shop: Shop) -> None:
    parent = sqlite_shop.start("--processes", "2")
    sqlite_shop.wait(lambda: len(pids(sqlite_shop)) == 2)
    sqlite_shop.deliver("held", 1)
    sqlite_shop.wait(lambda: sqlite_shop.holds(1))
    children = pids(sqlite_shop)
    parent.kill()
    parent.wait()
    sqlite_shop.go()
    sqlite_shop.wait(lambda: gone(children))
    assert sqlite_shop.effects() == ["held-1"]
    assert sqlite_shop.inbox.admin.workers() == []
    assert sqlite_shop.inbox.admin.stats().failures == 0


# From here on the children are small programs that only live and die.


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    with Inbox(sqlite_url, settings=Settings(stop_timeout=timedelta(seconds=0.1))) as made:
        made.migrate()
        yield made


class Nursery:
    """Children whose program is given as text, under a supervisor in a thread."""

    def __init__(self, inbox: Inbox, program: str, *, processes: int = 1, longest: float = 0.2) -> None:
        self.names: list[str] = []
        self.starts: list[float] = []

        def command(name: str) -> list[str]:
            self.names.append(name)
            self.starts.append(time.monotonic())
            return [sys.executable, "-I", "-S", "-c", program]

        self.supervisor = Supervisor(
            inbox.context, inbox.store, command, processes=processes, longest_pause=timedelta(seconds=longest)
        )

    @contextmanager
    def running(self) -> Iterator[Supervisor]:
        thread = threading.Thread(target=self.supervisor.run)
        thread.start()
        try:
            yield self.supervisor
        finally:
            self.supervisor.stop()
            thread.join()


SLEEPS = "import time; time.sleep(600)"


@pytest.mark.parametrize("code", [0, 3])
def test_a_child_that_ends_by_itself_is_replaced_under_another_name(inbox: Inbox, code: int) -> None:
    nursery = Nursery(inbox, f"raise SystemExit({code})", processes=2)
    with nursery.running() as running:
        wait_until(lambda: running.deaths >= 6)
    assert len(nursery.names) == len(set(nursery.names)) >= 6
    assert running.pids == []


def test_the_pause_grows_while_children_die_at_once(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", timedelta(seconds=0.2))
    nursery = Nursery(inbox, "raise SystemExit(1)", longest=0.8)
    with nursery.running() as running:
        wait_until(lambda: running.deaths >= 4)
    pauses = [later - sooner for sooner, later in zip(nursery.starts, nursery.starts[1:], strict=False)]
    assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8, 0.8), strict=False)), pauses


def test_a_child_that_lived_long_is_replaced_without_a_pause(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STEADY", timedelta(0))
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", timedelta(seconds=600))
    nursery = Nursery(inbox, SLEEPS, longest=600)
    with nursery.running() as running:
        (first,) = wait_until(lambda: running.pids)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: running.pids not in ([first], []))


def test_a_child_that_does_not_stop_is_killed(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "GRACE", timedelta(seconds=0.1))
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / 'deaf')!r}, 'w'); "
    with Nursery(inbox, deaf + SLEEPS).running() as running:
        wait_until((tmp_path / "deaf").exists)
        (child,) = running.pids
    assert not alive(child)
    assert "did not stop within 0.2 s and is killed" in caplog.text


def test_a_take_over_that_fails_is_tried_again(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.01)
    attempts: list[str] = []

    def perform(store: object, step: object) -> int:
        del store, step
        attempts.append("attempt")
        if len(attempts) < 3:
            raise StoreUnavailable("away")
        return 0

    monkeypatch.setattr(supervisor, "perform", perform)
    with Nursery(inbox, SLEEPS, longest=600).running() as running:
        (first,) = wait_until(lambda: running.pids)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(attempts) >= 3)
        wait_until(lambda: running.pids not in ([first], []))


def test_a_supervisor_that_was_stopped_before_it_ran_starts_nobody(inbox: Inbox) -> None:
    nursery = Nursery(inbox, SLEEPS)
    nursery.supervisor.stop()
    nursery.supervisor.run()
    assert nursery.names == []


def test_the_cause_of_death_is_a_sentence() -> None:
    for program, sentence in (
        ("raise SystemExit(7)", "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40 (no standard signal)"),
    ):
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program])
        process.wait()
        assert cause_of_death(process).startswith(f"process {process.pid} on ")
        assert cause_of_death(process).endswith(sentence)


def test_a_child_whose_parent_is_already_another_one_stops_by_itself() -> None:
    stranger = "from onceward.runtime.supervisor import follow_parent; import time; follow_parent(1); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", stranger])
    assert process.wait(timeout=30) == -signal.SIGTERM
