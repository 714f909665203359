"""A private PostgreSQL cluster.

Invariant: the port stays the same for the life of the object, so an address handed out before a crash is
right after it.
"""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import psycopg
from psycopg import sql

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_STOP = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_ATTEMPTS = 10

# synchronous_commit stays on in both: it is part of the behaviour under test, fsync is not.
_HASTY = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "deadlock_timeout": "200ms",  # a deadlock in a test should be a quick failure
    "jit": "off",
    "log_line_prefix": "%m [%p] ",
}


_OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"


class PostgresServer:
    """A PostgreSQL cluster of one's own: start it, kill it, start it again.

    `durable=True` keeps fsync, which a claim about surviving the loss of power needs; without it the cluster
    still survives the death of its processes, and is faster.
    """

    # Lives in the folder of the server that made it, and goes with it.
    _pristine: ClassVar[Path | None] = None

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self._bin = install.postgresql_bin()
        self._process = ServerProcess("pg")
        self._settings = {**_SETTINGS, **({} if durable else _HASTY), **(settings or {})}
        self.port = 0

    def start(self) -> Self:
        """Start the cluster, making it first if need be; returns when it takes connections."""
        data = self._process.folder / "data"
        if not data.exists():
            self._make(data)
        if self.port:
            self._launch(self.port)
            return self
        for attempt in range(_ATTEMPTS):
            port = free_port()
            try:
                self._launch(port)
            except PortTaken:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            self.port = port
            break
        return self

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop as `pg_ctl stop -m` would; "immediate" leaves recovery to the next start."""
        self._process.end(_STOP[mode])

    def kill(self) -> None:
        """SIGKILL for the postmaster and every backend at once."""
        self._process.kill()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> Self:
        """Stop if running, start again on the same port with the same data."""
        self.stop(mode)
        return self.start()

    def follow(self, primary: Self, *, through: int | None = None) -> None:
        """Become a standby of another cluster, from a copy of its files; both are up when this returns.

        `through` is the port of a proxy before the primary.
        """
        self.stop()
        primary.stop()
        data = self._process.folder / "data"
        self._process.run("rm", "-rf", data)
        self._process.run("cp", "-a", primary._process.folder / "data", data)
        self._process.run("touch", data / "standby.signal")
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host=127.0.0.1 port={through or primary.port} user=postgres'\n")
        primary.start()
        self.start()

    def close(self) -> None:
        """End the server and remove its data."""
        self._process.close()

    @property
    def running(self) -> bool:
        """Whether the postmaster is alive."""
        return self._process.running

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._process.pid

    @property
    def version(self) -> str:
        """The server's version, such as "15.19"."""
        printed = subprocess.check_output([self._bin / "postgres", "--version"], text=True)
        found = re.search(r"\) (\S+)", printed)
        return found[1] if found else printed.strip()

    def log(self) -> str:
        """Everything the server has logged."""
        return self._process.log()

    def url(self, database: str = "postgres") -> str:
        """The address of a database in this cluster, over TCP."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database and return its address; a template must have no open connections."""
        self._administer("CREATE DATABASE {} TEMPLATE {}", name, template or "template0")
        return self.url(name)

    def empty_database(self, name: str) -> None:
        """Make a database as new: nobody is connected, nothing is in it. A tenth of the time of making one."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            self.throw_out(connection)
            found = [schema for (schema,) in connection.execute(_SCHEMAS)]
            for schema in map(sql.Identifier, found):
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))
            connection.execute("CREATE SCHEMA public")
            connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(name)))

    def throw_out(self, connection: psycopg.Connection[Any]) -> None:
        """End all other connections to the database of this one."""
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({_OTHERS}) AS others")

    def drop_database(self, name: str) -> None:
        """Drop a database, throwing out whoever is still connected."""
        self._administer("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, data: Path) -> None:
        """Make a new cluster; a copy of one that was never started takes a tenth of the time of initdb."""
        pristine = PostgresServer._pristine
        if pristine is None or not pristine.exists():
            pristine = self._process.folder / "pristine"
            options = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync")
            self._process.run(self._bin / "initdb", "-D", pristine, *options)
            PostgresServer._pristine = pristine
        self._process.run("cp", "-a", pristine, data)

    def _administer(self, command: str, *names: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # The commands above are the only ones; names are quoted.
            connection.execute(sql.SQL(command).format(*map(sql.Identifier, names)))

    def _launch(self, port: int) -> None:
        folder = self._process.folder
        settings = {**self._settings, "port": str(port), "unix_socket_directories": str(folder)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        logged = len(self.log())
        self._process.launch(self._bin / "postgres", "-D", folder / "data", *options)
        wait_until(lambda: self._ready() or not self.running, message="PostgreSQL taking connections")
        if self.running:
            return
        self._process.end(signal.SIGQUIT)
        log = self.log()[logged:]
        raise (PortTaken(port) if "could not bind" in log else RuntimeError(f"PostgreSQL did not start:\n{log}"))

    def _ready(self) -> bool:
        """What pg_ctl looks at: our own postmaster's pid file, whose eighth line is its state."""
        try:
            lines = (self._process.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # After kill -9 the old file, with the old state, is still there.
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


class PortTaken(OSError):
    """Somebody bound the port between the choice and the start."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is taken")
