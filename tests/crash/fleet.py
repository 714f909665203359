"""Several worker processes at once, and whoever looks after them."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_process
from tests.crash.program import Job
from tests.crash.service import Kind
from tests.waiting import wait_until

if TYPE_CHECKING:
    from onceward import Inbox
    from tests.crash.ground import Ground
    from tests.crash.zygote import Zygote
    from tests.nursery import Child


@dataclass(slots=True)
class Fleet:
    """Worker processes on one store; those that die can be replaced."""

    ground: Ground
    zygote: Zygote
    kind: Kind = "sync"
    numbers: dict[str, float] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    workers: list[Child] = field(default_factory=list)

    def launch(self, count: int = 1) -> Child:
        """Start workers; answers the last."""
        for _ in range(count):
            job = Job(
                url=self.ground.victims_url,
                act="work",
                output=self.ground.new_output(),
                kind=self.kind,
                numbers=self.numbers,
                arguments=self.arguments,
            )
            self.workers.append(self.zygote.start(job))
        return self.workers[-1]

    def bury(self, worker: Child, inbox: Inbox | None = None) -> int:
        """Wait for a worker's end; with an inbox, do for it what a supervisor does. Answers the exit code."""
        code = worker.end()
        self.workers.remove(worker)
        if inbox is not None:
            take_over(inbox, worker.pid)
        return code

    def await_registration(self, worker: Child) -> None:
        """Wait until a worker is known to the database; from then on it is more than a process that starts."""
        known = f"SELECT count(*) FROM onceward_worker WHERE pid = {worker.pid}"
        wait_until(lambda: self.ground.number(known) or worker.gone, message=f"process {worker.pid} to register")

    def retire(self) -> None:
        """Ask all to stop and wait until they have."""
        for worker in self.workers:
            self.await_registration(worker)
            worker.signal(signal.SIGTERM)
        for worker in list(self.workers):
            code = self.bury(worker)
            assert code == 0, f"a worker that was asked to stop ended with {code}:\n{worker.errors}"


def take_over(inbox: Inbox, pid: int) -> None:
    """What a supervisor does for a child that it saw die."""
    for name in [row.process for row in inbox.admin.workers() if row.pid == pid]:
        perform(inbox.store, partial(take_over_process, inbox.context, name, f"process {pid} is dead"))
