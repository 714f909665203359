"""The programs that these tests start and kill; each is a function of its job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from onceward import Inbox, Message
from onceward.sinks.protocol import Closable, open_sink
from tests.contract.harness import QUICK
from tests.nursery import Job
from tests.outbox.post import AT_ONCE


class Deadly:
    """Kills its process when the other side has confirmed, once."""

    def __init__(self, sink: Closable, marker: Path) -> None:
        self._sink, self._marker = sink, marker

    def publish(self, message: Message) -> None:
        """Publish; then nobody is left to mark it."""
        self._sink.publish(message)
        if not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def relay(job: Job) -> None:
    """Publish to a broker until told to stop."""
    given = job.arguments
    with Inbox(given["url"], settings=QUICK) as inbox:
        sink = open_sink(given["sink"])
        inbox.add_sink("default", Deadly(sink, Path(given["marker"])), retry=AT_ONCE)
        job.say("ready")
        inbox.run()
        sink.close()
