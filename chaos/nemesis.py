"""The faults, each with its healing: a fault has ended when its call returns, so any two may follow each other."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg
import pymysql

from chaos.service import LEASE
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import PlainConnection
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy

if TYPE_CHECKING:
    from chaos.world import Fleet

DATABASE = "chaos"
Fault = Callable[[], None]


class Nemesis:
    """Draws one fault after the other."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet, self._rng = fleet, rng
        self.done: Counter[str] = Counter()
        self._faults: list[tuple[str, int, Fault]] = [
            ("worker killed", 6, lambda: fleet.kill(rng.choice(fleet.workers))),
            ("all workers killed", 1, self._kill_all),
            ("deliverer killed", 4, lambda: fleet.kill(rng.choice(fleet.deliverers))),
            ("worker stopped in order", 2, lambda: fleet.stop(rng.choice(fleet.workers))),
            ("worker suspended", 3, lambda: self._suspend(0.1, 1.0)),
            ("worker suspended beyond its lease", 1, lambda: self._suspend(1.2, 2.0)),
        ]

    @property
    def names(self) -> list[str]:
        """Every kind of fault."""
        return [name for name, _, _ in self._faults]

    def strike(self) -> None:
        """One fault and its healing."""
        ((name, _, fault),) = self._rng.choices(self._faults, [weight for _, weight, _ in self._faults])
        fault()
        self.done[name] += 1

    def _kill_all(self) -> None:
        for member in self._fleet.workers:
            self._fleet.kill(member)

    def _suspend(self, shortest: float, longest: float) -> None:
        """SIGSTOP for a part or a multiple of the lease; who wakes up late finds that its messages are others'."""
        process = self._rng.choice(self._fleet.workers).process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._rng.uniform(shortest, longest) * LEASE.total_seconds())
            process.send_signal(signal.SIGCONT)


class ServerNemesis(Nemesis):
    """Network and server too."""

    def __init__(
        self, fleet: Fleet, rng: random.Random, server: PostgresServer | MariadbServer, proxy: FaultProxy
    ) -> None:
        super().__init__(fleet, rng)
        self._server, self._proxy = server, proxy
        self._faults += [
            ("network cut", 3, self._cut),
            ("network frozen", 2, self._freeze),
            ("answer to a commit lost", 6, lambda: self._drop(proxy.drop_reply_after)),
            ("commit lost on its way", 3, lambda: self._drop(proxy.drop_request_with)),
            ("connections ended by the server", 3, self._terminate),
            ("server killed", 2, self._kill),
            ("server restarted", 1, self._restart),
            ("tables locked", 1, self._lock),
        ]

    def _cut(self) -> None:
        self._proxy.cut()
        time.sleep(self._rng.uniform(0, 0.5))
        self._proxy.heal()

    def _freeze(self) -> None:
        self._proxy.freeze()
        time.sleep(self._rng.uniform(0, 1.0))
        self._proxy.thaw()

    def _drop(self, arm: Callable[[bytes], None]) -> None:
        """It strikes at the next commit; where nobody commits for a while, it waits for the one after."""
        before = self._proxy.hits
        arm(b"COMMIT")
        deadline = time.monotonic() + 1
        while self._proxy.hits == before and time.monotonic() < deadline:
            time.sleep(0.01)

    def _kill(self) -> None:
        self._server.kill()
        time.sleep(self._rng.uniform(0, 0.5))
        self._server.start()

    def _terminate(self) -> None:
        raise NotImplementedError

    def _restart(self) -> None:
        raise NotImplementedError

    def _lock(self) -> None:
        raise NotImplementedError


class PostgresNemesis(ServerNemesis):
    """What PostgreSQL does in its own words."""

    _server: PostgresServer

    def __init__(self, fleet: Fleet, rng: random.Random, server: PostgresServer, proxy: FaultProxy) -> None:
        super().__init__(fleet, rng, server, proxy)
        self._faults.append(("server stopped at once", 1, self._stop_at_once))

    def _terminate(self) -> None:
        with psycopg.connect(self._server.url(DATABASE), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
            )

    def _restart(self) -> None:
        self._server.restart("fast")

    def _stop_at_once(self) -> None:
        self._server.restart("immediate")

    def _lock(self) -> None:
        with psycopg.connect(self._server.url(DATABASE)) as connection:
            connection.execute("SET LOCAL lock_timeout = '3s'")
            with contextlib.suppress(psycopg.Error):
                connection.execute("LOCK TABLE onceward_queue IN SHARE MODE")
                time.sleep(self._rng.uniform(0, 0.5))


class MariadbNemesis(ServerNemesis):
    """What MariaDB does in its own words."""

    _server: MariadbServer

    def _terminate(self) -> None:
        others = "SELECT id FROM information_schema.processlist WHERE db = %s AND rand() < 0.5"
        for (other,) in self._server.administer(others, DATABASE):
            with contextlib.suppress(pymysql.err.Error):  # it has gone by itself
                self._server.administer(f"KILL {other}")

    def _restart(self) -> None:
        self._server.stop()
        self._server.start()

    def _lock(self) -> None:
        address = Address.of(self._server.url(DATABASE)).arguments()
        with contextlib.closing(PlainConnection(**address)) as connection:
            connection.execute("SET SESSION lock_wait_timeout = 3")
            with contextlib.suppress(pymysql.err.Error):
                connection.execute("LOCK TABLES onceward_queue READ")
                time.sleep(self._rng.uniform(0, 0.5))


class SqliteNemesis(Nemesis):
    """The disk too."""

    def __init__(self, fleet: Fleet, rng: random.Random, disk: Disk) -> None:
        super().__init__(fleet, rng)
        self._disk = disk
        self._faults.append(("database locked", 3, self._lock))
        if disk.own:
            self._faults.append(("disk full", 4, self._fill))

    def _fill(self) -> None:
        with self._disk.full():
            time.sleep(self._rng.uniform(0, 1.0))

    def _lock(self) -> None:
        connection = sqlite3.connect(self._disk.path / "chaos.db", timeout=3)
        with contextlib.closing(connection), contextlib.suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(self._rng.uniform(0, 1.0))


class Disk:
    """A small file system that can be full. It takes root to make one; without, the run goes on and says so."""

    SIZE = 512 * 1024 * 1024

    def __init__(self, path: Path) -> None:
        self.path, self.own = path, False

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", str(self.path)]
        self.own = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self.own:
            subprocess.run(["umount", "-l", self.path], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No byte is left, until the end."""
        ballast = self.path / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                left = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
                if sys.platform == "linux":  # the quick way
                    os.posix_fallocate(file.fileno(), 0, max(left, 1))
                while True:
                    file.write(b"x" * 65536)
            yield
        finally:
            ballast.unlink(missing_ok=True)
