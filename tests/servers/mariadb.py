"""A private MariaDB.

Invariant: the port stays the same for the life of the object, so an address handed out before a crash is right after
it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers import install
from tests.servers.private import PrivateServer

# What is committed is written out at once in both, which is part of the behaviour under test; that it reaches a disk is
# not.
_HASTY = {"innodb-flush-method": "nosync"}
SETTINGS = {
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "32M",
    "max-connections": "300",
    "max-allowed-packet": "64M",
    "group-concat-max-len": "1024",  # as MySQL has it
    "skip-name-resolve": "ON",
    "performance-schema": "OFF",
}


class MariadbServer(PrivateServer):
    """A MariaDB of one's own: start it, kill it, start it again.

    `durable=True` waits for the disk, which a claim about surviving the loss of power needs; without it the server
    still survives the death of its process, and is faster.
    """

    name = "MariaDB"
    ready = "ready for connections"
    patience_seconds = 60.0
    version_text = r"Ver (\d+\.\d+\.\d+)"
    # Lives in the folder of the server that made it, and goes with it.
    _pristine: ClassVar[Path | None] = None

    def __init__(
        self, *, durable: bool = False, settings: Mapping[str, str] | None = None, program: Path | None = None
    ) -> None:
        super().__init__(program or install.mariadb_program())
        self._settings = {**SETTINGS, **({} if durable else _HASTY), **(settings or {})}

    def command(self, port: int) -> Sequence[str | Path]:
        if not (self.folder / "data").exists():
            self._make()
        settings = {**self._settings, "port": str(port), "datadir": str(self.folder / "data")}
        options = [f"--{name}={value}" for name, value in settings.items()]
        own = [f"--socket={self.folder}/s.sock", f"--pid-file={self.folder}/pid", "--bind-address=127.0.0.1"]
        return [self._program, "--no-defaults", self.scratch, *own, *options]

    @property
    def scratch(self) -> str:
        """The option for a folder of its own: whichever starts removes the temporary tables of others from theirs."""
        return f"--tmpdir={self.folder}"

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def url(self, database: str = "test") -> str:
        """The address of a database on this server, over TCP."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Create a database and return its address."""
        self.administer(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, throwing out whoever is still connected."""
        for (other,) in self.administer(
            "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()", name
        ):
            self._end(other)
        self.administer(f"DROP DATABASE IF EXISTS `{name}`")

    def administer(self, command: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator."""
        import pymysql  # noqa: PLC0415 - only tests on MariaDB need it

        # Else PyMySQL reads all the authorities that the system trusts, for each connection anew.
        who = {"user": "root", "autocommit": True, "ssl_disabled": True}
        with (
            pymysql.connect(host="127.0.0.1", port=self.port, **who) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(command, values or None)
            return list(cursor.fetchall())

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._process.end(signal.SIGTERM)

    def _end(self, connection: int) -> None:
        try:
            self.administer(f"KILL {connection}")
        except Exception as error:
            if error.args[0] != 1094:  # it has gone by itself
                raise

    def _make(self) -> None:
        """Make new data; a copy of what was never used takes a tenth of the time of making it."""
        pristine = MariadbServer._pristine
        if pristine is None or not pristine.exists():
            pristine = self.folder / "pristine"
            options = ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
            make = install.mariadb_install_program()
            self._process.run(make, "--no-defaults", self.scratch, f"--datadir={pristine}", *options)
            MariadbServer._pristine = pristine
        self._process.run("cp", "-a", pristine, self.folder / "data")
