"""Children that do the jobs of the crash tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tests import nursery
from tests.crash.program import Job
from tests.nursery import Child, Nursery


@dataclass(frozen=True, slots=True)
class Zygote:
    """Starts them."""

    nursery: Nursery

    def start(self, job: Job) -> Child:
        """Start a child."""
        return self.nursery.begin(nursery.Job("tests.crash.program:play", job.output, asdict(job)))

    def run(self, job: Job) -> Child:
        """Start a child and wait for its end."""
        child = self.start(job)
        child.end()
        return child
