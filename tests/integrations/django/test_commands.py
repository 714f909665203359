"""`manage.py onceward ...`: the whole command line about the project's inbox, as its users run it (R56)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from onceward import Inbox
from tests.integrations.django.running import DjangoShop
from tests.waiting import wait_until

SHOP = Path(__file__).parents[3] / "examples" / "django_shop"


class Project:
    """The shop of `examples/`, with a database of its own."""

    def __init__(self, url: str, log: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        self.environment = {**inherited, "SHOP_DATABASE": url}
        self.inbox, self.log = Inbox(url, service="shop"), log
        self.manage("migrate", "-v", "0")

    def manage(self, *words: str, code: int = 0) -> str:
        """Run `manage.py`; returns what it printed."""
        command = [sys.executable, "manage.py", *words]
        done = subprocess.run(command, cwd=SHOP, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `manage.py onceward run` beside the test."""
        command = [sys.executable, "manage.py", "onceward", "run", *words]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, cwd=SHOP, env=self.environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            code = process.wait(60)
            sys.stdout.write(self.log.read_text())
        assert code == 0

    def workers(self) -> set[int]:
        """The processes of its workers."""
        return {worker.pid for worker in self.inbox.admin.workers()}


@pytest.fixture
def project(store_url: str, tmp_path: Path) -> Iterator[Project]:
    """On each store."""
    project = Project(store_url, tmp_path / "log")
    yield project
    project.inbox.close()


def test_every_command_is_about_the_inbox_of_the_project(project: Project) -> None:
    """Without a name; its handlers were found in the apps."""
    assert "start one with: python manage.py onceward run" in project.manage("onceward", "status")
    data = '{"data": {"object": {"client_reference_id": "no such order"}}}'
    sent = project.manage("onceward", "send", "checkout.session.completed", "--data", data, "--copies", "2")
    assert "duplicate" in sent
    with project.running():
        wait_until(lambda: project.inbox.admin.messages(status="dead"), timeout=60, message="the dead message")
    stats = json.loads(project.manage("onceward", "status", "--json"))
    assert (stats["dead"], stats["duplicates"]) == (1, 1)
    (row,) = project.inbox.admin.messages(status="dead")
    assert f"Details: python manage.py onceward explain shop.inbox:inbox {row.seq}" in project.log.read_text()
    assert "there is no order" in project.manage("onceward", "explain", "shop.inbox:inbox", str(row.seq))
    assert "redriven: 1 message" in project.manage("onceward", "redrive", str(row.seq), "--reason", "try again")
    assert "there is no command" in project.manage("onceward", "redrvie", code=2).lower()
    assert "Look:" in project.manage("help", "onceward")
    assert "due" in project.manage("onceward", "status", "--settings", "config.settings")


def test_processes_are_started_again_by_manage(project: Project) -> None:
    """Those of a supervisor: each sets Django up, and one that is killed is replaced."""
    with project.running("--processes", "2"):
        wait_until(lambda: len(project.workers()) == 2, timeout=60, message="two workers")
        first, _ = sorted(project.workers())
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: len(project.workers() - {first}) == 2, timeout=60, message="another process in the place of one"
        )
    assert project.workers() == set()


def test_reloading_starts_manage_again(project: Project) -> None:
    with project.running("--reload"):
        wait_until(lambda: len(project.workers()) == 1, timeout=60, message="a worker")


def test_from_python(shop: DjangoShop, capsys: Any) -> None:
    """`call_command` raises where the command has failed, and the inbox of the process goes on."""
    globals()["inbox"] = shop.inbox  # so that it has a name
    try:
        call_command("onceward", "status", "--json")
        assert json.loads(capsys.readouterr().out)["due"] == 0
        with pytest.raises(CommandError) as failed:
            call_command("onceward", "show", "4711")
        assert failed.value.returncode == 1
        assert shop.receive("a") == "accepted"
        assert shop.inbox.admin.stats().unhandled == 1
    finally:
        del globals()["inbox"]
