"""A shop and its operator, who has the command line and is told alerts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner, Result

from onceward import Inbox
from onceward.admin.alerts import Alert, Rules
from onceward.cli.app import application

SOURCE = "stripe"
LIMITS = Rules(quiet=timedelta(0), held=timedelta(0), backlog=timedelta(0))
"""No test waits for minutes."""


def command(*words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(application, words)


def answer(*words: str) -> str:
    """What a command prints that must succeed."""
    result = command(*words)
    assert result.exit_code == 0, result.output
    return result.output


class Operator:
    """A shop and its operator."""

    def __init__(self, inbox: Inbox, limits: Rules = LIMITS) -> None:
        self.inbox = inbox
        self.store = ("--store", inbox.url, "--service", "shop")
        self.told: list[Alert] = []
        self.alerts = inbox.admin.alert(self.told.append, rules=limits)
        self._minutes = 0

    def receive(self, suffix: int | str, kind: str = "paid", **data: Any) -> int:
        """A message arrives."""
        return self.inbox.receive(source=SOURCE, id=f"evt_{suffix}", type=kind, data=data).seq

    def status(self) -> Any:
        """What `onceward status --json` says."""
        return json.loads(answer("status", *self.store, "--json"))

    def asks(self, *words: str) -> str:
        """What a command about the program prints, whatever its exit code is."""
        with patch("onceward.cli.target.load", lambda _: self.inbox), patch.object(self.inbox, "close"):
            return command(words[0], "shop:inbox", *words[1:]).output

    def sees(self, kind: str, state: str = "began") -> None:
        """The alert is told, at the latest in a few minutes."""
        found = []
        for _ in range(2):  # what must last for a minute before it is told is seen by the second look
            self._minutes += 2
            found += [(alert.kind, alert.state) for alert in self.alerts.look(self._minutes * 60.0)]
        assert (kind, state) in found

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker runs meanwhile."""
        worker = threading.Thread(target=self.inbox.run)
        worker.start()
        try:
            yield
        finally:
            self.inbox.stop()
            worker.join()
