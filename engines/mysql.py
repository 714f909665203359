"""Servers of MySQL's family: a load in which one is killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from engines.load import MESSAGES, Load, Report
from onceward import Inbox
from tests.servers import FaultProxy
from tests.servers.mariadb import MariadbServer
from tests.servers.mysql import GaleraCluster, GroupCluster, Mariadb11Server, MysqlServer, TidbServer
from tests.waiting import wait_until


def mariadb() -> Report:
    """Debian's."""
    return _report(lambda: MariadbServer(durable=True))


def mariadb11() -> Report:
    """The next long-term version."""
    return _report(Mariadb11Server)


def mysql() -> Report:
    """MySQL 8."""
    return _report(MysqlServer)


def tidb() -> Report:
    """One TiDB; its own store, which takes the place of TiKV, is stopped in order."""
    return _report(TidbServer, "SIGTERM of the server, restart")


def galera() -> Report:
    """Three servers that are all written; one is killed."""
    with GaleraCluster() as cluster:
        first, second, third = cluster.nodes
        first.create_database("test")
        verdict = Load(first.url(), MESSAGES, urls=[first.url(), second.url()]).play(third.kill)
        is_known = _doctor_says(first.url(), "a Galera cluster of")
        checks = first.is_synced(), second.is_synced(), not third.running, is_known
        fault = "two of three written, kill -9 of the third"
        return Report("MariaDB Galera", first.version, fault, verdict, checks)


def group() -> Report:
    """Three servers in a replicated group, behind a router to the one that takes writes; that one is killed."""
    with GroupCluster() as cluster:
        first, *others = cluster.nodes
        first.create_database("test")
        with FaultProxy("127.0.0.1", first.port) as router:

            def fail_over() -> None:
                first.kill()
                wait_until(lambda: cluster.primary() is not None, timeout=120, message="another primary")
                primary = cluster.primary()
                assert primary is not None
                router.lead_to("127.0.0.1", primary.port)

            verdict = Load(f"mysql://root@127.0.0.1:{router.port}/test", MESSAGES).play(fail_over)
            is_known = _doctor_says(others[0].url(), "a replicated group, group_replication_consistency BEFORE_ON")
            is_complete = all(node.online() == len(others) for node in others)
            checks = not first.running, cluster.primary() in others, is_complete, is_known
        fault = "kill -9 of the primary, another takes its place"
        return Report("MySQL Group Replication", first.version, fault, verdict, checks)


def _doctor_says(url: str, words: str) -> bool:
    with closing(Inbox(url)) as inbox:
        return any(words in what for _, what, _ in inbox.store.findings())


def _report(make: Callable[[], MariadbServer], fault: str = "kill -9 of the server, restart") -> Report:
    with make() as server:
        verdict = Load(server.create_database("engine"), MESSAGES).play(server.restart)
        return Report(server.name, server.version, fault, verdict)
