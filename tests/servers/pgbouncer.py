"""A private PgBouncer in front of a private PostgreSQL.

Invariant: transaction pooling, so consecutive transactions of one client may run on different server
connections, and nothing kept in a session (prepared statements, SET, advisory session locks, LISTEN) may be
relied upon.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import install
from tests.servers.private import PrivateServer

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer

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


class PgBouncer(PrivateServer):
    """PgBouncer in transaction mode, for every database of one server."""

    name = "PgBouncer"
    ready = "process up"

    def __init__(self, server: PostgresServer, *, pool_size: int = 20) -> None:
        super().__init__(install.pgbouncer_program())
        self._server = server
        self._pool_size = pool_size

    def command(self, port: int) -> Sequence[str | Path]:
        text = _CONFIGURATION.format(target=self._server.port, port=port, pool_size=self._pool_size)
        return [self._program, self.write("pgbouncer.ini", text)]

    def url(self, database: str = "postgres") -> str:
        """The address of a database behind this pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
