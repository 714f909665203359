"""Loads the named statements of a dialect: `portable.sql` has those that all share, its own file the others.

Times are whole microseconds since 1970. What each database says about them in its own words stands in the files as
tokens:

- `{now}`, in conditions: the time of the statement, the same for all its rows, so that an index on a time can answer
- `{clock}`, in values: the time at which they are written
- `{microseconds x}`: the parameter x, which is in seconds
- `{second}`: what a difference of times is divided by, to be seconds
- `{joined x}`, in what is shared: the texts of column x, with spaces between
- `{in type x}`, in what is shared: is one of the list x, whose elements have this type

- `{table}` and `{counted}`, behind a table of MySQL: how it keeps its rows, and that it counts them
- `{shared}`, `{skipping}` and `{tried}`, behind a query of MySQL: how rows are locked (mysql.sql has what each means)

In what is shared `:x` is the parameter x; PostgreSQL alone is told its type, where one stands behind it (`:x::bigint`).
A name in double quotes is quoted as the database wants it. A dialect's own statement takes the place of the shared one
of that name.

Invariant: besides the tokens, which are ours, `{prefix}`, checked by `identity.check_prefix`, is the only thing ever
put into SQL text; on PostgreSQL with the schema of the tables before it, so that whatever path a handler has set, our
statements find our tables.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_DEPLOY = re.compile(r"-- deploy: (before|after)\n")
_COMMENT = re.compile(r"^\s*--[^\n]*\n?", re.MULTILINE)
# Up to a semicolon at the end of a line; one inside the body of a function ends nothing.
_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|;(?!\s*(?:\n|\Z))|[^;$]|\$)+", re.DOTALL)
# Not in a literal, where it is a part of a name; but for the one that names a sequence.
_NAME = re.compile(r"(?<!')(?<!INDEX \()\{prefix\}|(?<=nextval\(')\{prefix\}")
_TOKEN = re.compile(r"\{(now|clock|second|microseconds|joined|table|counted|shared|skipping|tried)(?: (\w+))?\}")
_LIST = re.compile(r"\{in (\w+) (\w+)\}")
_QUOTED = re.compile(r'"(\w+)"')
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)(::\w+)?")
_BY_BYTES = (
    "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 "
    "/*!80017 COLLATE utf8mb4_0900_bin */ /*M! COLLATE utf8mb4_nopad_bin */"
)
# `date_part` is a float8, which has whole microseconds until 2106, and costs less than the numeric of `extract`.
WORDS = {
    "postgres": {
        "now": "(date_part('epoch', statement_timestamp()) * 1000000)::bigint",
        "clock": "(date_part('epoch', clock_timestamp()) * 1000000)::bigint",
        "second": "1000000::float8",
        "microseconds": "(%({})s::float8 * 1000000)::bigint",
        "parameter": r"%(\1)s\2",
        "joined": "string_agg({}, ' ')",
        "in": r"= ANY(%(\2)b::\1[])",
        "quoted": r'"\1"',
    },
    "sqlite": {
        "now": ":now",
        "clock": ":now",
        "second": "1000000.0",
        "microseconds": "CAST(:{} * 1000000 AS integer)",
        "parameter": r":\1",
        "joined": "group_concat({}, ' ')",
        "in": r"IN (SELECT value FROM json_each(:\2))",
        "quoted": r'"\1"',
    },
    "mysql": {
        "now": "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))",
        "clock": "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))",
        "second": "1e6",
        "microseconds": "cast(:{} * 1000000 AS signed)",
        "parameter": r":\1",
        "in": r"IN :\2",
        "quoted": r"`\1`",
        # Compared byte by byte, trailing spaces included: each server has another name for that, and reads its own.
        "table": _BY_BYTES,
        "counted": f"{_BY_BYTES} /*T! AUTO_ID_CACHE 1 */",
        "shared": "LOCK IN SHARE MODE",
        "skipping": "FOR UPDATE SKIP LOCKED",
        "tried": "FOR UPDATE SKIP LOCKED",
    },
}
WORDS["tidb"] = WORDS["mysql"] | {"shared": "FOR UPDATE", "skipping": "FOR UPDATE", "tried": "FOR UPDATE NOWAIT"}
"""A server that understands the files of MySQL otherwise."""
_SQL = Path(__file__).with_name("sql")


@cache
def load(dialect: str, prefix: str, schema: str = "", server: str = "") -> dict[str, tuple[str, ...]]:
    """The statements of a dialect by name; a section may hold several, which run in order.

    `schema`, quoted where it needs to be, is where the tables are; without it they are found by the search path. A
    `server` may have words of its own.
    """
    shared = {name: _spoken(text, dialect) for name, text in sections("portable").items()}
    found = shared | sections(dialect)
    if schema:
        found = {name: _NAME.sub(lambda _: f"{schema}.{{prefix}}", text) for name, text in found.items()}
    return {name: _statements(text, server or dialect, prefix) for name, text in found.items()}


def sections(file: str) -> dict[str, str]:
    """What stands under each name in one of our files, comments and tokens included."""
    parts = _SECTION.split((_SQL / f"{file}.sql").read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _spoken(text: str, dialect: str) -> str:
    """What is shared, in the words of a dialect."""
    words = WORDS[dialect]
    return _QUOTED.sub(words["quoted"], _PARAMETER.sub(words["parameter"], _LIST.sub(words["in"], text)))


class Migration(NamedTuple):
    """One numbered file. `deploy` says whether code that does not know it goes on working: `before` yes, `after` no."""

    version: int
    name: str
    deploy: str
    statements: tuple[str, ...]


@cache
def migrations(dialect: str, prefix: str) -> tuple[Migration, ...]:
    """The numbered migrations of a dialect."""
    found = []
    for file in (_SQL / "migrations").iterdir():
        number, _, rest = file.name.partition("_")
        if rest.endswith(f".{dialect}.sql"):
            text = file.read_text(encoding="utf-8")
            header = _DEPLOY.match(text)
            if header is None:
                raise ValueError(f"{file.name} does not begin with `-- deploy: before` or `-- deploy: after`")
            name = rest.removesuffix(f".{dialect}.sql")
            found.append(Migration(int(number), name, header[1], _statements(text, dialect, prefix)))
    return tuple(sorted(found))


def _statements(text: str, dialect: str, prefix: str) -> tuple[str, ...]:
    words = WORDS[dialect]
    text = _COMMENT.sub("", text).replace("{prefix}", prefix)
    text = _TOKEN.sub(lambda token: words[token[1]].format(token[2]), text)
    return tuple(part.strip() for part in _STATEMENT.findall(text) if part.strip())
