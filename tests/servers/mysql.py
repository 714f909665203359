"""A private MySQL 8 and MariaDB 11.4, fetched with Maven, clusters of three of each kind, and a private TiDB."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from tests.servers import install
from tests.servers.mariadb import SETTINGS, MariadbServer
from tests.waiting import wait_until


class MysqlServer(MariadbServer):
    """A MySQL of one's own."""

    name = "MySQL"
    ready = "ready for connections. Version"
    _pristine: ClassVar[Path | None] = None

    def __init__(self) -> None:
        self._home = install.mysql_home()
        super().__init__(program=self._home / "bin" / "mysqld")
        # Its administrator may come from localhost, which is a name.
        left_out = ("innodb-log-file-size", "skip-name-resolve")
        self._settings = {name: value for name, value in SETTINGS.items() if name not in left_out}

    def command(self, port: int) -> Sequence[str | Path]:
        own = [f"--basedir={self._home}", f"--lc-messages-dir={self._home}/share", "--mysqlx=OFF"]
        return [*super().command(port), *own]

    def _make(self) -> None:
        where = [f"--basedir={self._home}", f"--datadir={self.folder}/data", f"--lc-messages-dir={self._home}/share"]
        self._process.run(self._program, "--no-defaults", "--initialize-insecure", *where)


class Mariadb11Server(MariadbServer):
    """A MariaDB 11.4 of one's own."""

    version_text = r"Ver (\d+\.\d+\.\d+)"
    _pristine: ClassVar[Path | None] = None

    def __init__(self) -> None:
        self._home = install.mariadb11_home()
        super().__init__(program=self._home / "bin" / "mariadbd")

    def command(self, port: int) -> Sequence[str | Path]:
        # It would make itself a certificate at every start, which takes a minute on a busy machine.
        own = [f"--basedir={self._home}", f"--lc-messages-dir={self._home}/share", "--skip-ssl"]
        return [*super().command(port), *own]

    def _make(self) -> None:
        options = [f"--basedir={self._home}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        script = self._home / "scripts" / "mariadb-install-db"
        self._process.run(script, "--no-defaults", self.scratch, f"--datadir={self.folder}/data", *options)


class TidbServer(MariadbServer):
    """A TiDB of one's own: one process, with the store that TiDB tests itself on in place of TiKV.

    That store is not to be killed: it loses parts of transactions.
    """

    name = "TiDB"
    ready = "server is running MySQL protocol"
    version_option = "-V"
    version_text = r"Release Version: v(\d+\.\d+\.\d+)"

    def __init__(self) -> None:
        super().__init__(program=install.tidb_program())

    def command(self, port: int) -> Sequence[str | Path]:
        settings = self.write("config.toml", '[status]\nreport-status = false\n[performance]\nstats-lease = "0"\n')
        where = [f"--path={self.folder}/data", f"--socket={self.folder}/s.sock", "--host=127.0.0.1", "-P", str(port)]
        return [self._program, "--store=unistore", "--config", settings, *where]

    def url(self, database: str = "test") -> str:
        return f"{super().url(database)}?tidb=unproven"

    def drop_database(self, name: str) -> None:
        """Drop a database, unless somebody is still connected: TiDB 8.5.4 may end in a panic at a KILL."""
        others = "SELECT id FROM information_schema.processlist WHERE db = %s"
        if not self.administer(others, name):
            self.administer(f"DROP DATABASE IF EXISTS `{name}`")

    def restart(self) -> None:
        """In order."""
        self.stop()
        self.start()


class GroupCluster:
    """Three MySQLs in a replicated group, of which one takes writes at a time; another takes its place."""

    def __init__(self) -> None:
        self.nodes = [_GroupNode(number) for number in range(3)]

    def __enter__(self) -> Self:
        seeds = ",".join(f"127.0.0.1:{node.group_port}" for node in self.nodes)
        for node in self.nodes:
            node.seeds = seeds
            node.start()
            node.join(first=node.number == 0)
        wait_until(lambda: self.nodes[0].online() == len(self.nodes), timeout=120, message="three members online")
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.close()

    def primary(self) -> MysqlServer | None:
        """The member that takes writes now, once it has all that was committed before."""
        return next((node for node in self.nodes if node.running and node.takes_writes()), None)


class _GroupNode(MysqlServer):
    name = "Group member"
    patience_seconds = 120.0

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.seeds = ""
        self.group_port = install.port_beside()

    def command(self, port: int) -> Sequence[str | Path]:
        group = {
            "group-name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
            "start-on-boot": "OFF",
            "local-address": f"127.0.0.1:{self.group_port}",
            "group-seeds": self.seeds,
            "ip-allowlist": "127.0.0.1/8",
            "recovery-get-public-key": "ON",
            "member-expel-timeout": "2",
            "consistency": "BEFORE_ON_PRIMARY_FAILOVER",
        }
        own = [
            "--report-host=127.0.0.1",
            f"--server-id={self.number + 1}",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--log-bin=bin",
            "--performance-schema=ON",
            f"--plugin-dir={self._home}/lib/plugin",
            "--plugin-load-add=group_replication.so",
            *(f"--loose-group-replication-{name}={value}" for name, value in group.items()),
        ]
        return [*super().command(port), *own]

    def join(self, *, first: bool) -> None:
        """Take part, or begin the group."""
        for command in (
            "SET GLOBAL super_read_only = OFF",
            "RESET MASTER",
            "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root' FOR CHANNEL 'group_replication_recovery'",
            f"SET GLOBAL group_replication_bootstrap_group = {'ON' if first else 'OFF'}",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
        ):
            self.administer(command)

    def online(self) -> int:
        """How many members take part, as this one sees it."""
        members = "SELECT count(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"
        ((count,),) = self.administer(members)
        return int(count)

    def takes_writes(self) -> bool:
        """Whether it is the primary of its group, and open."""
        role = (
            "SELECT member_role FROM performance_schema.replication_group_members WHERE member_id = @@server_uuid "
            "AND member_state = 'ONLINE' AND NOT @@super_read_only"
        )
        with suppress(Exception):  # it is asked again
            return self.administer(role) == [("PRIMARY",)]
        return False


class GaleraCluster:
    """Three MariaDBs that all take writes; debian's Galera keeps them alike."""

    def __init__(self) -> None:
        install.galera_library()
        self.nodes = [_GaleraNode(number) for number in range(3)]

    def __enter__(self) -> Self:
        groups = [node.group_port for node in self.nodes]
        for node in self.nodes:
            node.groups = groups
            node.start()
            wait_until(node.is_synced, timeout=120, message=f"node {node.number} in the cluster")
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.close()


class _GaleraNode(MariadbServer):
    name = "Galera"
    ready = "ready for connections"
    patience_seconds = 120.0

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.groups: list[int] = []
        self.group_port, self.other_port, self.transfer_port = (install.port_beside() for _ in range(3))

    def command(self, port: int) -> Sequence[str | Path]:
        others = ",".join(f"127.0.0.1:{one}" for one in self.groups)
        provider = (
            f"base_host=127.0.0.1;base_port={self.group_port};gmcast.listen_addr=tcp://127.0.0.1:{self.group_port};"
            f"ist.recv_addr=127.0.0.1:{self.other_port};gcache.size=32M;evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT5S"
        )
        own = [
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            f"--wsrep-provider={install.galera_library()}",
            "--wsrep-cluster-name=onceward",
            f"--wsrep-node-name=n{self.number}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-cluster-address=gcomm://{others}",
            f"--wsrep-provider-options={provider}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self.transfer_port}",
        ]
        return [*super().command(port), *own, *(["--wsrep-new-cluster"] if self.number == 0 else [])]

    def is_synced(self) -> bool:
        """Whether it takes part."""
        rows = self.administer("SHOW STATUS LIKE 'wsrep_local_state_comment'")
        return [row[1] for row in rows] == ["Synced"]

    def end(self) -> None:
        """SIGKILL."""
        self._process.end(signal.SIGKILL)
