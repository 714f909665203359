"""A private PgBouncer in front of a private PostgreSQL.

Invariant: transaction pooling, so consecutive transactions of one client may run on different server
connections, and nothing kept in a session (prepared statements, SET, advisory session locks, LISTEN) may be
relied upon.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Self

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer

_ATTEMPTS = 10

# auth_type any: whoever asks is let in as the user of the [databases] line. Debian's 1.18 knows no
# protocol-level prepared statements, which is the point: a client must work without them.
_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={target} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
server_login_retry = 1
"""


class PgBouncer:
    """PgBouncer in transaction mode, for every database of one server."""

    def __init__(self, server: PostgresServer, *, pool_size: int = 20) -> None:
        self._program = install.pgbouncer_program()
        self._server = server
        self._pool_size = pool_size
        self._process = ServerProcess("pgbouncer")
        self.port = 0

    def start(self) -> Self:
        """Start; returns when it takes connections."""
        for port in [self.port] if self.port else [free_port() for _ in range(_ATTEMPTS)]:
            self._launch(port)
            if self.running:
                self.port = port
                return self
            self._process.end(signal.SIGTERM)
        raise RuntimeError(f"PgBouncer did not start:\n{self.log()}")

    def stop(self) -> None:
        """Stop at once, cutting every client off."""
        self._process.end(signal.SIGTERM)

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.close()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.running

    @property
    def version(self) -> str:
        """The version, such as "1.18.0"."""
        printed = subprocess.check_output([self._program, "--version"], text=True)
        found = re.search(r"PgBouncer (\S+)", printed)
        return found[1] if found else printed.strip()

    def log(self) -> str:
        """Everything the process has logged."""
        return self._process.log()

    def url(self, database: str = "postgres") -> str:
        """The address of a database behind this pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self, port: int) -> None:
        path = self._process.folder / "pgbouncer.ini"
        path.write_text(_CONFIGURATION.format(target=self._server.port, port=port, pool_size=self._pool_size))
        if self._process.user:
            shutil.chown(path, self._process.user)
        logged = len(self.log())
        self._process.launch(self._program, path)
        # Asking the port instead might reach whoever took it first.
        wait_until(
            lambda: "process up" in self.log()[logged:] or not self.running,
            message="PgBouncer taking connections",
        )
