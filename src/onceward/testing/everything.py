"""The effect of a message where no check= says what it is: every row of every table that it added or removed.

Invariant: the tables of the inbox itself are no effect, and neither are numbers that a database gives by itself: an
attempt that is rolled back uses them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from onceward.errors import ConfigurationError

LARGEST = 128 * 1024 * 1024
"""A database with more bytes is not compared as a whole: each case reads all of it."""
_SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgres": "SELECT pg_database_size(current_database())",
    "mysql": "SELECT coalesce(sum(data_length), 0) FROM information_schema.tables WHERE table_schema = database()",
}
_COLUMNS = {
    "sqlite": """
        SELECT quote_name, column_name, 0 FROM (
            SELECT '"' || replace(m.name, '"', '""') || '"' AS quote_name, m.name AS table_name,
                   '"' || replace(c.name, '"', '""') || '"' AS column_name
            FROM sqlite_master m JOIN pragma_table_info(m.name) c
            WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite~_%' ESCAPE '~')
        ORDER BY 1, 2""",
    "postgres": """
        SELECT format('%I.%I', n.nspname, c.relname), format('%I', a.attname),
               a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname <> 'information_schema'
          AND n.nspname !~ '^pg_'
        ORDER BY 1, a.attnum""",
    "mysql": """
        SELECT concat('`', replace(t.table_name, '`', '``'), '`'), concat('`', replace(c.column_name, '`', '``'), '`'),
               c.extra = 'auto_increment'
        FROM information_schema.tables t
        JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
        WHERE t.table_schema = database() AND t.table_type = 'BASE TABLE'
        ORDER BY t.table_name, c.ordinal_position""",
}

Row = tuple[str, str, tuple[Any, ...]]


class Everything:
    """A `check=` that shows every changed row: (table, "added" or "removed", its values)."""

    def __init__(self, connection: Any, dialect: str, prefix: str, ignore: Collection[str] = ()) -> None:
        if dialect not in _COLUMNS:
            raise ConfigurationError(f"a {dialect} database cannot be compared as a whole: use prove_exactly_once")
        size = connection.execute(_SIZE[dialect]).fetchone()[0]
        if size > LARGEST:
            raise ConfigurationError(
                f"the database has {size // 1_048_576:,} MB, and each case compares all of it: prove on a smaller one, "
                "with the rows that the message is about"
            )
        self._dialect = dialect
        self.compared: dict[str, list[str]] = {}
        known = set()
        for table, column, is_numbered in connection.execute(_COLUMNS[dialect]).fetchall():
            name, short = f"{_plain(table)}.{_plain(column)}", _plain(table)
            known |= {name, short}
            mine = table.rpartition(".")[2].strip('"`').startswith(prefix)
            if not mine and not is_numbered and not {name, short} & set(ignore):
                self.compared.setdefault(table, []).append(column)
        if unknown := sorted(set(ignore) - known):
            raise ConfigurationError(f"there is no {unknown[0]} to ignore; use TABLE or TABLE.COLUMN")
        self._start = self._rows(connection)

    def __call__(self, connection: Any) -> list[Row]:
        """What is there now and was not, and the other way round."""
        now = self._rows(connection)
        found = []
        for table, before in self._start.items():
            found += [(_plain(table), "removed", row) for row in (before - now[table]).elements()]
            found += [(_plain(table), "added", row) for row in (now[table] - before).elements()]
        return sorted(found, key=repr)

    def _rows(self, connection: Any) -> dict[str, Counter[tuple[Any, ...]]]:
        cast = "::text" if self._dialect == "postgres" else ""
        return {
            table: Counter(
                map(
                    tuple,
                    connection.execute(
                        f"SELECT {', '.join(f'{column}{cast}' for column in columns)} FROM {table}"
                    ).fetchall(),
                )
            )
            for table, columns in self.compared.items()
        }


def _plain(name: str) -> str:
    """A name as people write it."""
    return name.replace('"', "").replace("`", "").removeprefix("public.")
