"""Databases of PostgreSQL that have onceward's tables, and are used again.

Making the tables and dropping them takes longer than most tests do with them. So a test finds them made, and after it
the tables are emptied, what it made besides is dropped, and what is left is compared with what the migrations make.

Invariant: a database that is used again is as `migrate` leaves a new one: the same objects, rows and next numbers, no
statistics and no dead rows. One that is not is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg import sql

from onceward import Inbox

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer

_OURS = "relnamespace = 'public'::regnamespace"
# What depends on a table (indexes, the sequences of its columns, its type) goes with it.
_OBJECTS = f"""SELECT relkind::text, relname FROM pg_class c WHERE {_OURS} AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype IN ('a', 'i') AND relkind = 'S')"""
_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)'"
_DROP = {"v": "VIEW", "m": "MATERIALIZED VIEW", "S": "SEQUENCE", "f": "FOREIGN TABLE"}
_WRITTEN = f"SELECT relname FROM pg_class WHERE {_OURS} AND relkind = 'r' AND pg_relation_size(oid) > 0"
_RESTART = "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences"
_SETTINGS = """SELECT setconfig FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
    WHERE datname = current_database()"""
_LATER = "oid >= 16384"  # not of the server itself
# By the transactions that wrote the catalog, which truncating leaves alone in all but pg_class.
_STATE = f"""
    SELECT string_agg(concat_ws(' ', relname, relkind, relnatts, relchecks, reltriggers, relacl, reloptions), ','
                      ORDER BY relname)
    FROM (SELECT c.*, (SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid) AS reltriggers FROM pg_class c) AS c
    WHERE {_OURS}
    UNION ALL SELECT md5(string_agg(concat_ws(' ', a.attrelid, attnum, a.xmin), ',' ORDER BY a.attrelid, attnum))
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE {_OURS}
    UNION ALL SELECT md5(string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid)) FROM pg_constraint WHERE {_LATER}
    UNION ALL SELECT md5(string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid)) FROM pg_proc WHERE {_LATER}
    UNION ALL SELECT md5(string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid)) FROM pg_rewrite WHERE {_LATER}
    UNION ALL SELECT concat_ws(' ', (SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_type WHERE {_LATER}),
        (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_event_trigger),
        (SELECT count(*) FROM pg_statistic JOIN pg_class c ON c.oid = starelid WHERE {_OURS}))
"""

Row = tuple[Any, ...]


class Prepared:
    """Such databases in one cluster."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._made = server, 0
        self._free: list[str] = []
        self._pristine: dict[str, tuple[list[Row], list[Row], dict[str, str]]] = {}

    def take(self) -> str:
        """The name of one."""
        if self._free:
            return self._free.pop()
        self._made += 1
        name = f"prepared_{self._made}"
        with Inbox(self._server.create_database(name)) as inbox:
            inbox.migrate()
        with psycopg.connect(self._server.url(name), autocommit=True) as connection:
            kept = {table: _rows(connection, table) for (table,) in connection.execute(_WRITTEN)}
            self._pristine[name] = connection.execute(_OBJECTS).fetchall(), _state(connection), kept
        return name

    def put_back(self, name: str) -> None:
        """Make it as new; or drop it."""
        with psycopg.connect(self._server.url(name), autocommit=True) as connection:
            is_new = self._renewed(connection, *self._pristine[name])
        if is_new:
            self._free.append(name)
        else:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Do without it from now on."""
        del self._pristine[name]
        self._server.drop_database(name)

    def _renewed(
        self, connection: psycopg.Connection[Row], objects: list[Row], state: list[Row], kept: dict[str, str]
    ) -> bool:
        if connection.execute(_SETTINGS).fetchall():
            return False
        self._server.throw_out(connection)
        for kind, relation in set(connection.execute(_OBJECTS)) - set(objects):
            drop = f"DROP {_DROP.get(kind, 'TABLE')} IF EXISTS {{}} CASCADE"
            connection.execute(sql.SQL(cast("Any", drop)).format(sql.Identifier("public", relation)))
        for (schema,) in connection.execute(_SCHEMAS).fetchall():
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        if _state(connection) != state:
            return False
        written = [sql.Identifier(table) for (table,) in connection.execute(_WRITTEN)]
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(written)))
        connection.execute(_RESTART)
        for table, rows in kept.items():
            name = sql.Identifier(table)
            insert = "INSERT INTO {0} SELECT * FROM json_populate_recordset(null::{0}, {1})"
            connection.execute(sql.SQL(insert).format(name, sql.Literal(rows)))
        # What a new database draws by lot is drawn again.
        connection.execute("UPDATE onceward_catalog SET version = floor(random() * 9007199254740992), folder = DEFAULT")
        return True


def _rows(connection: psycopg.Connection[Row], table: str) -> str:
    rows = sql.SQL("SELECT coalesce(json_agg(t), '[]')::text FROM {} t").format(sql.Identifier(table))
    return str(connection.execute(rows).fetchall()[0][0])


def _state(connection: psycopg.Connection[Row]) -> list[Row]:
    return connection.execute(cast("Any", _STATE)).fetchall()
