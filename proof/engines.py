"""The tables in docs/engines.md: of every engine's recorded run, what it may state, and what each store cannot do."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

from onceward.stores.protocol import LACKS, Capability, StoreOptions, open_store
from proof.__main__ import FIGURES, PAGE

ENGINES_PAGE = PAGE.with_name("engines.md")
BEGIN, END = "<!-- made by `make engines` -->\n", "<!-- end -->\n"
BEGIN_CAPABILITIES = "<!-- made by `make engines` from what the stores declare -->\n"

STORES = {
    "SQLite": "sqlite:///shop.db",
    "`sqlite://`, in memory": "sqlite://",
    "PostgreSQL": "postgresql://localhost/shop",
    "MySQL, MariaDB": "mysql://localhost/shop",
    "Redis, Valkey": "redis://localhost/0",
    "DynamoDB": "dynamodb://eu-central-1/shop",
}
"""An address of each."""


class Statement(NamedTuple):
    """What an engine may state."""

    once: str
    order: str
    rests_on: str


_SQL = "for effects in the same database"
_POSTGRES = Statement(_SQL, "yes", "`fsync` and `synchronous_commit` on")
_MYSQL = Statement(
    f"{_SQL}, in InnoDB tables", "yes", "`innodb_flush_log_at_trx_commit` 1; `sync_binlog` 1 where replicas follow"
)
_REDIS = Statement(
    "for commands recorded on `tx`, in the same server",
    "yes",
    "`appendonly yes`, `appendfsync always`, `noeviction`, and no failover to a replica",
)
STATEMENTS = {
    **dict.fromkeys(("postgres13", "postgres14", "postgres16", "postgres17", "postgres18"), _POSTGRES),
    "failover": Statement(_SQL, "yes", "a **synchronous** standby"),
    **dict.fromkeys(("mysql", "mariadb", "mariadb11"), _MYSQL),
    "tidb": Statement(
        "not stated: it is refused",
        "not stated",
        "the server that is played has TiDB's own store, which is **not atomic when it is killed**",
    ),
    "galera": Statement(
        f"{_SQL}, whichever server is written",
        "for what onceward's own sessions receive; for `receive(tx=...)` through one server alone",
        "a majority of the servers; `wsrep_sync_wait` 1, which onceward sets in its sessions",
    ),
    "group": Statement(
        _SQL,
        "yes, with a single primary",
        "a majority of the members; `group_replication_consistency` BEFORE_ON_PRIMARY_FAILOVER",
    ),
    **dict.fromkeys(("redis", "valkey"), _REDIS),
    "dynamodb": Statement(
        "for writes recorded on `tx`, in one region and account",
        "yes",
        "Amazon's word: DynamoDB Local shows conditions and transactions, and **proves no durability**",
    ),
    "pulsar": Statement(
        "a broker: what it delivers takes effect as the store states",
        "yes, within a key",
        "acknowledged after the commit; an id that stays the same when it is delivered again",
    ),
}
"""By engine."""


def records() -> list[dict[str, Any]]:
    """The recorded runs, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FIGURES.glob("engine-*.json"))]


def table() -> str:
    """The table as it should be."""
    lines = [
        "| engine | server | played | passed | failed | fault under load | messages | errors meanwhile | lost | doubled | disordered | commit, date |",
        "|---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for record in records():
        found, load = record["engine"], record["engine"]["load"]
        cells = [
            *(f"`{record['run']}`", f"{found['server']} {found['version']}", found["played"]),
            *(found["passed"], found["failed"], found["fault"]),
            *(f"{load['messages']:,}", load["errors"], load["lost"], load["doubled"], load["disordered"]),
            f"{record['commit'][:12]}, {record['date']}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def statements() -> str:
    """What each may state, of those that are recorded; equal ones share a row."""
    names: dict[Statement, list[str]] = {}
    for record in records():
        names.setdefault(STATEMENTS[record["run"]], []).append(f"`{record['run']}`")
    rows = ["| engine | exactly once | order per key | rests on |", "|---|---|---|---|"]
    rows += [f"| {' | '.join([', '.join(engines), *one])} |" for one, engines in names.items()]
    return "\n".join(rows) + "\n"


def capabilities() -> str:
    """What each store lacks, as it declares it, and what that means."""
    asked: list[Capability] = [*LACKS]
    rows = [f"| store | {' | '.join(asked)} |", f"|---|{'---|' * len(asked)}"]
    for name, url in STORES.items():
        with closing(open_store(url, StoreOptions("onceward_", timedelta(seconds=1)))) as store:
            rows.append(f"| {name} | {' | '.join('yes' if one in store.capabilities else 'no' for one in asked)} |")
    means = [f"- No *{one}*: the store {LACKS[one]}." for one in asked]
    return "\n".join([*rows, "", *means]) + "\n"


def with_table(page: str) -> str:
    """The page with its tables as they should be."""
    page = _with(page, BEGIN, f"{table()}\n{statements()}")
    return _with(page, BEGIN_CAPABILITIES, capabilities())


def _with(page: str, begin: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}{text}{END}{after}"


def write() -> None:
    """Write it into the page."""
    ENGINES_PAGE.write_text(with_table(ENGINES_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
