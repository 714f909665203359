"""The programs that the suite starts and kills: a service that reads from a broker, and one that publishes to it.

python -m onceward.testing.broker_suite.program read '{"store": ..., "url": ..., "marker": ...}'
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, Settings, execute
from onceward.brokers.protocol import Closable, open_sink

QUICK = Settings(lease=timedelta(seconds=1), poll=timedelta(seconds=0.05))


def read(store: str, url: str, marker: str) -> None:
    """Read from a broker until told to stop; with a marker, die when the first batch is committed."""
    inbox = Inbox(store, settings=QUICK)
    inbox.add_source(url, source="broker", batch=10)

    @inbox.on("order.paid")
    def handle(message: Message, tx: Any) -> None:
        execute(tx, "INSERT INTO effects (message_id, note) VALUES (:id, '')", {"id": message.id})

    if marker:
        source: Any = inbox.ingress.consumers[0].source
        source.ack = _deadly(source.ack, Path(marker))
    inbox.run()


def _deadly(ack: Callable[[Any], Any], marker: Path) -> Callable[[Any], Any]:
    """The first batch is committed, and then the process is gone before the broker hears of it."""

    def die(arrivals: Any) -> Any:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ack(arrivals)

    return die


class Deadly:
    """Kills its process when the other side has confirmed."""

    def __init__(self, sink: Closable) -> None:
        self._sink = sink

    def publish(self, message: Message) -> None:
        """Publish; then no process is left to mark it."""
        self._sink.publish(message)
        os.kill(os.getpid(), signal.SIGKILL)


def relay(store: str, url: str) -> None:
    """Publish to a broker, and die when it has confirmed the first message."""
    with Inbox(store, settings=QUICK) as inbox:
        inbox.add_sink("default", Deadly(open_sink(url)))
        inbox.run()


PROGRAMS: Mapping[str, Callable[..., None]] = {"read": read, "relay": relay}


def started(program: str, **given: str) -> subprocess.Popen[bytes]:
    """One of these, in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", __spec__.name, program, json.dumps(given)])  # noqa: S603


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))
