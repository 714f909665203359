"""The statements in a query string, cut as PostgreSQL's own lexer cuts them.

A handler may send several statements in one string, and a COMMIT among them would end a transaction that is not its
own; what stands in a comment, a literal or a function's body is no statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Possessive everywhere: no text, however long or odd, is read twice.
_TOKEN = re.compile(
    r"""(?P<space>\s++|--[^\n]*+)
    | (?P<comment>/\*)
    | (?P<end>;)
    | (?:[eE]'(?:[^'\\]|\\.|'')*+'?        # a literal in which a backslash escapes
      | '(?:[^']|'')*+'?
      | "(?:[^"]|"")*+"?
      | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
      | \w[\w$]*+
      | .)""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT_PART = re.compile(r"/\*|\*/")


def statements(sql: str) -> Iterator[str]:
    """Each statement, without what stands before its first word."""
    alone = sql.strip().rstrip(";")
    if ";" not in alone and not alone.startswith(("/*", "--")):  # nearly always, and then nothing need be cut
        yield alone
        return
    at, start = 0, -1
    while at < len(sql):
        token = _TOKEN.match(sql, at)
        assert token is not None  # noqa: S101 - its last choice takes any character
        at = token.end()
        if token.lastgroup == "comment":
            at = _after_comment(sql, at)
        elif token.lastgroup == "end":
            if start >= 0:
                yield sql[start : token.start()]
            start = -1
        elif token.lastgroup != "space" and start < 0:
            start = token.start()
    if start >= 0:
        yield sql[start:]


def _after_comment(sql: str, at: int) -> int:
    """Where the comment ends whose beginning has been read; PostgreSQL's comments nest."""
    depth = 1
    while depth:
        part = _COMMENT_PART.search(sql, at)
        if part is None:
            return len(sql)
        at = part.end()
        depth += 1 if part.group() == "/*" else -1
    return at
