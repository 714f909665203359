"""What the doctor should know of a server of MySQL's family, from the settings that it really uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onceward.stores.mysql.pools import inner_size

Finding = tuple[str, str, str]
_BESIDE_POOL = 3
"""Of a process with one lane: the lane's, the lease's, and one to look for what others have stored."""
_SMALL_PACKET = 16 << 20


def of(said: Mapping[str, Any], pool: int, workers: int, destinations: int) -> list[Finding]:
    """Each as (level, what is so, what to do)."""
    given = {name.lower(): str(value) for name, value in said.items()}
    kind = _tidb(given) if is_tidb(given["version"]) else (*_durability(given), *_kind(given))
    return [*kind, *_modes(given), _room(given, pool, workers, destinations)]


def _durability(said: Mapping[str, str]) -> Iterator[Finding]:
    flush, binlog = said.get("innodb_flush_log_at_trx_commit", "1"), said.get("sync_binlog", "1")
    yield "ok", f"MySQL {said['version']}, innodb_flush_log_at_trx_commit {flush}, sync_binlog {binlog}", ""
    if flush != "1":
        yield (
            "error",
            f"innodb_flush_log_at_trx_commit is {flush}: a crash can lose messages that were acknowledged",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
        )
    if said.get("log_bin") == "ON" and binlog != "1" and not is_group(said):
        yield (
            "warning",
            f"sync_binlog is {binlog}: after a crash replicas may lack messages that were acknowledged",
            "SET GLOBAL sync_binlog = 1",
        )
    if said.get("read_only") == "ON":
        yield "error", "this server is a read-only replica", "connect to the primary"
    if said.get("innodb_doublewrite", "ON") == "OFF":
        yield "error", "innodb_doublewrite is off: a crash of the machine can destroy tables", "turn it on"


def is_tidb(version: str) -> bool:
    """Whether a server is TiDB, which speaks of itself as MySQL."""
    return "TiDB" in version


def _tidb(said: Mapping[str, str]) -> Iterator[Finding]:
    yield "ok", f"TiDB {said['version']}, default transactions are {said.get('tidb_txn_mode') or 'optimistic'}", ""
    if said.get("tidb_txn_mode") != "pessimistic":
        yield (
            "warning",
            "tidb_txn_mode is not pessimistic: tx= refuses callers' transactions (onceward's own sessions set it)",
            "SET GLOBAL tidb_txn_mode = 'pessimistic'",
        )
    if said.get("tidb_enable_check_constraint", "OFF") != "ON":
        yield "ok", "CHECK is not enforced (tidb_enable_check_constraint); onceward does not rely on it", ""


def numbering(made_by: str) -> Iterator[Finding]:
    """Of a table whose numbers are the order of messages, by what would make it again on TiDB."""
    if "AUTO_ID_CACHE=1 " not in made_by:
        yield (
            "error",
            "the ledger does not have AUTO_ID_CACHE 1: servers draw its numbers in blocks, and order per key is lost",
            "make the tables anew with `onceward migrate` in another database: it cannot be changed later",
        )


def _kind(said: Mapping[str, str]) -> Iterator[Finding]:
    if is_group(said):
        yield from _group(said)
    size = said.get("wsrep_cluster_size", "0")
    if said.get("wsrep_on") == "ON":
        yield (
            "warning" if size not in ("0", "1") else "ok",
            (
                f"a Galera cluster of {size}: messages take effect once whichever server is written; order per key "
                "holds with wsrep_sync_wait = 1, which onceward sets in its sessions and your own do not"
            ),
            "write through one server where callers' transactions receive and order matters",
        )


def _group(said: Mapping[str, str]) -> Iterator[Finding]:
    """Of group replication."""
    if said.get("group_replication_single_primary_mode") != "ON":
        yield (
            "warning",
            "a replicated group with several primaries: messages take effect once, order per key does not hold",
            "SELECT group_replication_switch_to_single_primary_mode()",
        )
    consistency = said.get("group_replication_consistency", "")
    if consistency == "EVENTUAL":
        yield (
            "warning",
            (
                "group_replication_consistency is EVENTUAL: a new primary takes writes before it has all that was "
                "committed, and order per key does not hold meanwhile"
            ),
            "SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on every member",
        )
    else:
        yield "ok", f"a replicated group, group_replication_consistency {consistency}", ""


def tables(not_undone: Iterable[str]) -> Iterator[Finding]:
    """Of tables that have no transactions."""
    if named := ", ".join(not_undone):
        yield (
            "warning",
            f"tables without transactions: {named}. What a handler does to them stays when it fails, and is done again",
            "ALTER TABLE ... ENGINE = InnoDB",
        )


def _modes(said: Mapping[str, str]) -> Iterator[Finding]:
    isolation = said.get("transaction_isolation") or said.get("tx_isolation", "")
    if isolation != "READ-COMMITTED":
        yield "ok", f"default isolation is {isolation}; onceward sets READ COMMITTED in its own sessions", ""
    if "STRICT_" not in said.get("sql_mode", ""):
        yield (
            "warning",
            "strict mode is off: values that do not fit are cut without an error (not in onceward's sessions)",
            "SET GLOBAL sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
        )
    if said.get("binlog_format") == "STATEMENT" and not is_tidb(said["version"]):
        yield "error", "binlog_format is STATEMENT, which refuses to write under READ COMMITTED", "set it to ROW"
    collation = said.get("collation_server", "")
    if collation and not collation.endswith("_bin"):
        yield (
            "ok",
            f"default collation is {collation}: your tables may take two texts for one; onceward's compare bytes",
            "",
        )
    packet = int(said.get("max_allowed_packet", _SMALL_PACKET))
    if packet < _SMALL_PACKET:
        yield (
            "warning",
            f"max_allowed_packet is {packet}: a message with a larger body is refused",
            "raise it, or keep large bodies in a blob store (Inbox(blobs=...))",
        )
    else:
        yield "ok", f"max_allowed_packet is {packet}: a larger body needs a blob store", ""


def _room(said: Mapping[str, str], pool: int, workers: int, destinations: int) -> Finding:
    """Whether the server has room for every connection that our processes may open."""
    relay = 1 + destinations if destinations else 0
    ours = max(workers, 1)
    wanted = ours * (pool + inner_size(pool) + _BESIDE_POOL + relay)
    allowed = int(said.get("max_connections", "0"))
    others = max(0, int(said.get("threads_connected", "0")) - 1)
    what = (
        f"{ours} {'process' if ours == 1 else 'processes'} may open up to {wanted} connections, {others} are open now, "
        f"and the server lets in {allowed or 'any number'}"
    )
    if not allowed or wanted <= allowed:
        return "ok", what, ""
    advice = f"raise max_connections by {wanted - allowed} or more, lower Settings(pool=...), or run fewer processes"
    return "warning", f"{what}: under load connections will be refused", advice


def is_group(said: Mapping[str, str]) -> bool:
    """Whether the server is of a replicated group."""
    return bool(said.get("group_replication_group_name"))
