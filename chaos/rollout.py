"""An upgrade, a rollback, and an upgrade that cannot be rolled back, while messages come and processes die.

Invariant: a step ends when what it started works, or is recorded in `wrong`; so at most one process at a time is on
its way from one release to another, and all others work on the same tables meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from chaos.releases import Release
from onceward import Inbox

if TYPE_CHECKING:
    from chaos.world import Fleet, Member

PATIENCE = 240
"""Seconds that a migration may take, a process until it works, and old code until it has refused."""

Step = Callable[[], None]


class Rollout:
    """The steps, and what came of them."""

    def __init__(self, fleet: Fleet, url: str, releases: tuple[Release, Release, Release], rng: random.Random) -> None:
        self._fleet, self._url, self._rng = fleet, url, rng
        self._releases = releases
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def wanted(self) -> list[str]:
        """The hard states that a run must have reached."""
        finished = [f"finished by {release.name}" for release in self._releases]
        return [*finished, "key handed over to another release", "process replaced", "older code refused"]

    def steps(self) -> list[Step]:
        """All of them, in order, for a fleet of the first release; each leaves a fleet that works."""
        old, new, _ = self._releases
        members = [*self._fleet.workers, *self._fleet.deliverers]
        forward, back = (self._rng.sample(members, len(members)) for _ in range(2))
        return [
            lambda: self._kill_migrator(new),
            lambda: self._migrate_twice(new),
            *(lambda member=member: self._replace(member, new) for member in forward),
            *(lambda member=member: self._replace(member, old) for member in back),
            self._leave_behind,
        ]

    def _replace(self, member: Member, release: Release) -> None:
        """One process ends, in order or not, and comes back as another release."""
        before = member.process.pid
        member.environment = release.environment
        if self._rng.random() < 0.5:
            self._fleet.stop(member)
        else:
            self._fleet.kill(member)
        worker = member in self._fleet.workers
        if self._wait(
            lambda: member.finished or (self._registered(member) if worker else member.process.pid != before)
        ):
            self.done["process replaced"] += 1
        else:
            self.wrong.append(f"a process of {release.name} did not come up in {PATIENCE} s")

    def _registered(self, member: Member) -> bool:
        """Whether its present process is among the workers, as the release that it should be."""
        query = "SELECT pid, code_version FROM onceward_worker"
        with Inbox(self._url) as inbox, inbox.transaction() as tx:
            found = {tuple(row) for row in tx.execute(query).fetchall()}
        return (member.process.pid, member.environment["ONCEWARD_CODE_VERSION"]) in found

    def _kill_migrator(self, release: Release) -> None:
        """A migration that dies on its way, early or late."""
        migrator = self._migrator(release)
        with contextlib.suppress(subprocess.TimeoutExpired):
            migrator.wait(self._rng.uniform(0.1, 1.0))
        migrator.kill()
        migrator.communicate()
        self.done["migrator killed" if migrator.returncode else "migrator was faster"] += 1

    def _migrate_twice(self, release: Release) -> None:
        """Two migrators at once."""
        for migrator in [self._migrator(release) for _ in range(2)]:
            self._expect_success(migrator)
            self.done["migrated under load"] += 1

    def _leave_behind(self) -> None:
        """A migration that older code cannot live with: it refuses, by name, and the new code finishes everything."""
        old, new, breaking = self._releases
        with self._fleet.away(breaking.environment):
            self._expect_success(self._migrator(breaking))
            for release in (old, new):
                for member in self._fleet.workers[::2]:
                    self._expect_refusal(self._fleet.launch(member.command, release.environment, subprocess.PIPE))
                self._expect_refusal(self._migrator(release))

    def _expect_refusal(self, process: subprocess.Popen[bytes]) -> None:
        migration = self._releases[-1].migration
        end = self._end(process)
        if process.returncode and f"deploy the onceward that has {migration}" in " ".join(end.split()):
            self.done["older code refused"] += 1
        else:
            self.wrong.append(f"older code did not refuse {migration}: {end}")

    def _expect_success(self, migrator: subprocess.Popen[bytes]) -> None:
        end = self._end(migrator)
        if migrator.returncode:
            self.wrong.append(f"a migrator failed: {end}")

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> str:
        """The last words of a process, which is killed if it does not come to its end."""
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + b" (did not end)"
        return output.decode().strip()[-500:]

    def _migrator(self, release: Release) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "onceward", "migrate", "--store", self._url]
        return self._fleet.launch(command, release.environment, subprocess.PIPE)

    @staticmethod
    def _wait(until: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True
