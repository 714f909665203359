"""The two dialects say the same things: same names, same parameters, every section explained and loadable."""

from __future__ import annotations

import ast
import re
from importlib import resources
from pathlib import Path

import pytest

from onceward.stores import migrate
from onceward.stores.statements import load, migrations, sections
from tests.unit.script import _POSTGRES_PARAMETER, _SQLITE_PARAMETER

DIALECTS = ("postgres", "sqlite")
SQL = Path(str(resources.files("onceward.stores") / "sql"))
PACKAGE = SQL.parents[1]
NAMES = sorted(load("postgres", "p_"))


def used(dialect: str, name: str) -> set[str]:
    pattern = _POSTGRES_PARAMETER if dialect == "postgres" else _SQLITE_PARAMETER
    return set(pattern.findall(" ".join(load(dialect, "p_")[name]))) - {"now"}


def test_both_dialects_have_the_same_names() -> None:
    """A step never asks for a statement that only one database knows."""
    assert load("postgres", "p_").keys() == load("sqlite", "p_").keys()
    for dialect in DIALECTS:
        assert load(dialect, "p_").keys() == sections("portable").keys() | sections(dialect).keys()


def test_what_is_shared_is_said_once() -> None:
    """A dialect has for itself only what it must say differently, and what it shares stands in no two files."""
    shared = sections("portable").keys()
    for dialect in DIALECTS:
        assert not shared & sections(dialect).keys(), dialect


def test_what_is_shared_is_spoken_in_each_dialect() -> None:
    """Types are PostgreSQL's alone; a list is what each takes for one."""
    (postgres,), (sqlite,) = (load(dialect, "p_")["retire"] for dialect in DIALECTS)
    assert " WHERE id = ANY(%(subscriptions)b::integer[]) AND " in postgres
    assert " WHERE id IN (SELECT value FROM json_each(:subscriptions)) AND " in sqlite
    assert not [each for each in load("sqlite", "p_").values() if "::" in " ".join(each)]


def test_both_dialects_take_the_same_parameters() -> None:
    """What is passed for one database is what the other needs, except for SQLite's clock."""
    for name in NAMES:
        assert used("postgres", name) == used("sqlite", name), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_section_is_loaded_whole(dialect: str) -> None:
    """Statements without comments or substitutions left, each with its tables under the prefix."""
    for name, statements in load(dialect, "some_prefix_").items():
        assert statements, name
        for statement in statements:
            check_whole(statement)
        if dialect == "postgres":
            assert len(statements) == 1, "PostgreSQL runs one statement for each request"
            assert re.sub(r"%\(\w+\)[sb]|%%", "", statements[0]).count("%") == 0


def check_whole(statement: str) -> None:
    """One statement, as the database gets it."""
    assert statement == statement.strip()
    assert "{prefix}" not in statement
    assert "--" not in statement
    assert not statement.endswith(";")
    assert statement.count("(") == statement.count(")")
    assert statement.count("'") % 2 == 0
    for table in re.findall(r"\b(?:FROM|JOIN|UPDATE|INTO)\s+(\w+(?:queue|ledger|body|worker|name|run))\b", statement):
        assert table.startswith("some_prefix_")


@pytest.mark.parametrize("dialect", ["portable", *DIALECTS])
def test_a_section_says_why(dialect: str) -> None:
    """The first line of a section is a comment with words in it."""
    for name, text in sections(dialect).items():
        assert re.match(r"-- \w+.*\w", text), name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conflict_names_its_key(dialect: str) -> None:
    """Without a target, or with IGNORE, any other constraint would be taken for a duplicate, and a message lost."""
    for name, statements in load(dialect, "p_").items():
        for statement in statements:
            assert not re.search(r"\bOR (IGNORE|REPLACE|ROLLBACK|ABORT|FAIL)\b", statement), name
            assert not re.search(r'\bON CONFLICT (?!\("?\w)', statement), name
    (clause,) = re.findall(r"ON CONFLICT.*", " ".join(load(dialect, "p_")["receive"]))
    assert clause.startswith("ON CONFLICT (consumer, source, id) DO NOTHING")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_time_is_that_of_the_moment(dialect: str) -> None:
    """`now()` stands still in a transaction: a lease or a due time made from it would be old when it is written."""
    for name, statements in load(dialect, "p_").items():
        stale = re.search(r"\bnow\(|CURRENT_TIMESTAMP|transaction_timestamp|datetime\(", " ".join(statements))
        assert stale is None, name
    for _, _, _, statements in migrations(dialect, "p_"):
        assert not re.search(r"DEFAULT (now|CURRENT|\(datetime)", " ".join(statements))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_ledger_row_is_never_changed(dialect: str) -> None:
    """Inserted once and in one table: a duplicate costs no dead row, and no border between parts hides one."""
    for name, statements in load(dialect, "p_").items():
        assert not re.search(r"UPDATE p_ledger\b", " ".join(statements)), name
    tables = " ".join(statement for one in migrations(dialect, "p_") for statement in one.statements)
    assert "UNIQUE (consumer, source, id)" in tables
    ledger = next(table for table in tables.split("CREATE TABLE ") if table.startswith("p_ledger"))
    assert "PARTITION" not in ledger.upper()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_prefixes_are_two_inboxes(dialect: str) -> None:
    """Statements of one prefix never name a table of another."""
    one, other = load(dialect, "one_"), load(dialect, "other_")
    for name in NAMES:
        assert not any("other_" in statement for statement in one[name])
        assert tuple(statement.replace("other_", "one_") for statement in other[name]) == one[name]


def test_only_sqlite_has_several_statements_in_a_section() -> None:
    """A section of several statements is split where a line ends with a semicolon."""
    assert len(load("sqlite", "p_")["receive"]) == 3
    assert [statement.split()[0] for statement in load("sqlite", "p_")["receive"]] == ["INSERT"] * 3


def asked() -> set[str]:
    """Every name that a Query or Each in the package asks for."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Query" | "Each"), args=[ast.Constant(value=str(name)), *_]):
                    found.add(name)
                case _:
                    pass
    return found


def test_every_statement_that_is_asked_for_exists() -> None:
    """No step asks for a name that is not in the files."""
    found = asked()
    assert found
    assert found <= set(NAMES)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    """1, 2, 3, each with statements that create tables under the prefix."""
    known = migrations(dialect, "p_")
    assert [one.version for one in known] == list(range(1, len(known) + 1))
    for _, name, _, statements in known:
        assert re.fullmatch(r"\w+", name)
        assert statements
        assert not any("{prefix}" in statement or "--" in statement for statement in statements)
    assert migrate.newest(dialect, "p_") == len(known)


def test_both_dialects_have_the_same_migrations() -> None:
    """A version means the same in each database."""
    one, other = (migrations(dialect, "p_") for dialect in DIALECTS)
    assert [each[:3] for each in one] == [each[:3] for each in other]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_as_text_are_the_ones_that_are_applied(dialect: str) -> None:
    """Whoever owns the schema may run the printed text instead: it holds the same statements in the same order."""
    run: list[str] = []

    def execute(statement: str) -> list[tuple[int, str, str]]:
        run.append(statement)
        return []

    applied = migrate.apply(dialect, "p_", "url", execute)
    assert applied == [f"{one.version:04d}_{one.name}" for one in migrations(dialect, "p_")]
    text = migrate.as_text(dialect, "p_")
    place = -1
    for statement in run:
        if statement != migrate.applied_query("p_"):
            assert (place := text.find(statement + ";", place + 1)) >= 0, statement


def test_a_current_schema_needs_nothing() -> None:
    """Applying again finds the newest version and changes nothing but the bookkeeping table it looks for."""
    run: list[str] = []

    def execute(statement: str) -> list[tuple[int, str, str]]:
        run.append(statement)
        return [(migrate.newest("sqlite", "p_"), "retention", "before")]

    assert migrate.apply("sqlite", "p_", "url", execute) == []
    assert len(run) == 2


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:se:cr@et@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://host/db?password=secret&sslmode=require", "postgresql://host/db?password=***&sslmode=require"),
        ("postgresql://user@host/db?sslPassword=secret", "postgresql://user@host/db?sslPassword=***"),
        ("sqlite:///file.db", "sqlite:///file.db"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    """An address in an error message has no password in it."""
    assert migrate.masked(url) == shown
    assert "secret" not in str(migrate.missing(url, "p_"))
