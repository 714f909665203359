"""A handler's SQL, as far as it matters whose transaction it is in.

MySQL commits by itself before DDL and much else; what is in `_COMMITS` is refused at the line where it stands. What
gets past that, such as a procedure, takes the fence of the transaction away, and the finish fails.
"""

from __future__ import annotations

import re

from onceward.errors import ContractViolation
from onceward.stores.calls import refuse_transaction_control

# What may stand before a statement. Atomic and possessive: no text, however odd, is read twice. A comment that begins
# with `!` is no comment but SQL.
_BEFORE = re.compile(
    r"(?>\s|;|\(|--[ \t][^\n]*|--\n|\#[^\n]*|/\*!\d*|/\*M!\d*|/\*(?![!M]).*?\*/|/\*M(?!!).*?\*/)*+", re.DOTALL
)
_PIECES = re.compile(
    r"""'(?:[^'\\]|\\.|'')*+'? | "(?:[^"\\]|\\.|"")*+"? | `[^`]*+`? | --[ \t][^\n]*+ | \#[^\n]*+ | /\*.*?(?:\*/|\Z)
    | (?P<end>;) | [^'"`;\#/-]++ | .""",
    re.DOTALL | re.VERBOSE,
)
_COMMITS = re.compile(
    r"(?P<ddl>(?:CREATE|DROP|ALTER)\s+(?!(?:OR\s+REPLACE\s+)?TEMPORARY\b)\w+|TRUNCATE|RENAME|ANALYZE|OPTIMIZE|REPAIR|CHECK\s+TABLE"
    r"|CACHE\s+INDEX|LOAD\s+INDEX|LOCK\s+(?:TABLES?|INSTANCE)|UNLOCK|GRANT|REVOKE|FLUSH|RESET|INSTALL|UNINSTALL|XA"
    r"|CHANGE\s+(?:MASTER|REPLICATION)|(?:START|STOP)\s+(?:SLAVE|REPLICA|GROUP_REPLICATION)|IMPORT\s+TABLE)\b"
    r"|(?P<autocommit>SET\b[^;]*\bautocommit\b)",
    re.IGNORECASE,
)
_LASTING = re.compile(
    r"SET\b(?!\s+STATEMENT\b)|USE\b|PREPARE\b|DEALLOCATE\b|HANDLER\b|(?:CREATE|DROP|ALTER)\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"\bGET_LOCK\s*\(|@\w+\s*:=|\bINTO\s+@", re.IGNORECASE)


def check(sql: str) -> bool:
    """Refuse what ends the transaction, and a second statement; returns whether what is set or made outlasts it."""
    start = _BEFORE.match(sql)
    statement = sql[start.end() :] if start else sql
    refuse_transaction_control(statement)
    if found := _COMMITS.match(statement):
        raise ContractViolation(_committing(found))
    if ";" in statement:
        _refuse_second(statement)
    return bool(
        _LASTING.match(statement) or (_INSIDE.search(statement) if "(" in statement or "@" in statement else None)
    )


def _committing(found: re.Match[str]) -> str:
    if found["autocommit"]:
        return "the handler set autocommit; the transaction belongs to onceward: returning commits, raising rolls back"
    word = " ".join(found["ddl"].upper().split())
    return (
        f"the handler ran {word}, and MySQL commits what was done before it. Make and change tables in a migration; a "
        "temporary table is fine"
    )


def _refuse_second(statement: str) -> None:
    for piece in _PIECES.finditer(statement):
        if piece["end"] and _after(statement, piece.end()):
            raise ContractViolation("the handler sent several statements in one string; send each by itself")


def _after(statement: str, at: int) -> bool:
    """Whether something stands behind a semicolon that is more than a comment."""
    rest = _BEFORE.match(statement, at)
    return bool(rest and rest.end() < len(statement))


def undoes(sql: str) -> bool:
    """Whether a statement goes back to a savepoint."""
    start = _BEFORE.match(sql)
    return sql[start.end() if start else 0 :][:8].upper() == "ROLLBACK"
