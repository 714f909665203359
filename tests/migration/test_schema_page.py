"""docs/schema.md has every table and column of a migrated database; what people read has times in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from onceward import Inbox
from onceward.domain import identity
from tests.migration.catalogs import run
from tests.stores import with_mariadb

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"
PREFIX = "onceward_"
SQLITE = {
    "smallint": "integer",
    "bigint": "integer",
    "boolean": "integer",
    "bytea": "blob",
    "float8": "real",
    "bigint[]": "text",
}
MYSQL = {"bigint[]": "text"}
KINDS = {
    **dict.fromkeys(("varchar", "text", "longtext", "varbinary"), "text"),
    **dict.fromkeys(("binary", "tinyblob", "longblob"), "bytea"),
    **dict.fromkeys(("datetime", "decimal"), "timestamp"),
    "bigint": "bigint",
    "int": "integer",
    "smallint": "smallint",
    "tinyint": "boolean",
    "double": "float8",
}
"""What MySQL's types stand for."""
TIME = re.compile(r".*_at|at|until|alive_until")

Columns = dict[str, str]
"""The type of each column, with `null` where it may be empty."""


def documented(dialect: str) -> dict[str, Columns]:
    """What the page says."""
    found: dict[str, Columns] = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        name = section.partition("\n")[0]
        about = section.partition("\n## ")[0]
        if (dialect != "postgres" and "PostgreSQL only." in about) or (dialect != "mysql" and "MySQL only." in about):
            continue
        rows = re.findall(r"^\| (\w+) \| ([\w\[\]]+)( null)? \| (.+) \|$", section, flags=re.MULTILINE)
        assert rows, name
        found[name] = {
            column: {"sqlite": SQLITE, "mysql": MYSQL}.get(dialect, {}).get(kind, kind) + null
            for column, kind, null, meaning in rows
            if meaning != "meaning" and (dialect == "mysql" or not meaning.startswith("MySQL only"))
        }
    return found


def existing(url: str, kinds: str = "table") -> dict[str, Columns]:
    """What there is: tables without the partitions of bodies, or views."""
    if url.startswith("sqlite"):
        rows = run(
            url,
            'SELECT m.name, c.name, lower(c.type), c."notnull" OR c.pk > 0 '
            "FROM sqlite_master m, pragma_table_info(m.name) c "
            f"WHERE m.type = '{kinds}' AND m.name LIKE 'onceward%'",
        )
    elif url.startswith("mysql"):
        kind = "BASE TABLE" if kinds == "table" else "VIEW"
        found_rows = run(
            url,
            "SELECT c.table_name, c.column_name, c.data_type, c.is_nullable = 'NO' FROM information_schema.columns c "
            "JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name "
            f"WHERE c.table_schema = database() AND t.table_type = '{kind}' ORDER BY 1, c.ordinal_position",
        )
        rows = [(table, column, KINDS[data], needed) for table, column, data, needed in found_rows]
    else:
        relkinds = "'r', 'p'" if kinds == "table" else "'v'"
        rows = run(
            url,
            "SELECT r.relname, a.attname, replace(format_type(a.atttypid, a.atttypmod), 'double precision', 'float8'),"
            " a.attnotnull FROM pg_class r JOIN pg_attribute a ON a.attrelid = r.oid "
            "WHERE a.attnum > 0 AND NOT a.attisdropped AND NOT r.relispartition "
            f"AND r.relkind IN ({relkinds}) AND r.relname LIKE 'onceward%' ORDER BY 1, a.attnum",
        )
    found: dict[str, Columns] = {}
    for table, column, kind, needed in rows:
        found.setdefault(table.removeprefix(PREFIX), {})[column] = kind + ("" if needed else " null")
    return found


def dialect_of(url: str) -> str:
    return {"sqlite": "sqlite", "mysql": "mysql"}.get(url.partition(":")[0], "postgres")


@with_mariadb
def test_the_page_has_every_table_and_column(store_url: str) -> None:
    """None is missing and none too many; type and whether it may be empty are as the page says."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
    assert existing(store_url) == documented(dialect_of(store_url))


@with_mariadb
def test_every_table_with_times_has_a_view_in_which_people_can_read_them(store_url: str) -> None:
    """The same columns in the same order; every time is one there, and each table keeps it as a number."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
    tables, views = existing(store_url), existing(store_url, "view")
    timed = {name: columns for name, columns in tables.items() if any(map(TIME.fullmatch, columns))}
    assert views.keys() == {f"{name}_readable" for name in timed}
    for name, columns in timed.items():
        assert list(views[f"{name}_readable"]) == list(columns)
        numbers = {kind.removesuffix(" null") for column, kind in columns.items() if TIME.fullmatch(column)}
        assert numbers == {"integer" if dialect_of(store_url) == "sqlite" else "bigint"}, name
        if dialect_of(store_url) == "postgres":
            shown = {views[f"{name}_readable"][column] for column in columns if TIME.fullmatch(column)}
            assert shown == {"timestamp with time zone null"}, name


@with_mariadb
def test_the_views_show_what_the_tables_hold(store_url: str) -> None:
    """Ids of every stored form, names, text that is no UTF-8, and the moment itself."""
    with Inbox(store_url) as inbox:
        inbox.migrate()
        for name in existing(store_url, "view"):
            run(store_url, f"SELECT * FROM {PREFIX}{name}")
        ids = ("evt_1", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "x" * 300)
        for one in ids:
            inbox.receive(source="shop", id=one, type="t", body=b'"\xc3\xa4"')
        inbox.send(type="t", data=1, id="out_1", to="elsewhere")
        (stored,) = run(store_url, f"SELECT received_at FROM {PREFIX}ledger WHERE seq = 1")[0]
    rows = run(store_url, f"SELECT source, id, received_at FROM {PREFIX}ledger_readable ORDER BY seq")
    assert [row[0] for row in rows[:3]] == ["shop"] * 3
    first, second, third, sent = (row[1] for row in rows)
    assert (first, second.replace("-", "")) == ("evt_1", ids[1].replace("-", ""))
    assert third == "sha256:" + identity.stored_id(ids[2])[1:].hex()
    assert sent.startswith("out_1")
    shown = rows[0][2]
    if isinstance(shown, str):
        shown = datetime.fromisoformat(shown).replace(tzinfo=UTC)
    assert abs(shown.timestamp() * 1_000_000 - stored) < 1_000  # SQLite shows milliseconds
    assert len(run(store_url, f"SELECT body FROM {PREFIX}body_readable")) == 4
