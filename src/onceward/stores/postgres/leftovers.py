"""What a statement of a handler leaves behind on PostgreSQL, by its text: settings, temporary tables, session locks.

Functions set too: those whose source says so are known by name (`SETTERS`), read when a connection is opened. What a
trigger sets is not seen here.
"""

from __future__ import annotations

import re

from onceward.stores.leftovers import Left

SETTERS = """
SELECT pg_backend_pid(), ARRAY(
    SELECT lower(proname) FROM pg_proc WHERE oid >= 16384
    AND prosrc ~* '\\mset_config\\s*\\(|(^|;|\\m(begin|then|else|loop)\\M|execute[^;]*'')\\s*(re)?set\\s')
"""
"""Who answers, and the names of the functions that set something."""

_COMMAND = re.compile(
    r"(?P<local>SET\s+(?:LOCAL|CONSTRAINTS)\b)|(?P<session>SET\b|RESET\b)"
    r"|(?P<more>DISCARD|DEALLOCATE|PREPARE|UNLISTEN|LISTEN|LOAD)\b",
    re.IGNORECASE,
)
_SET_CONFIG = re.compile(r"\bset_config\b", re.IGNORECASE)
_LOCAL_CONFIG = re.compile(r"\bset_config\s*\([^()]*,\s*true\s*\)", re.IGNORECASE)
_TEMPORARY = re.compile(r"\b(?:CREATE|INTO)\s+(?:\w+\s+)*?TEMP(?:ORARY)?\b", re.IGNORECASE)
_DROPPED = re.compile(r"\bON\s+COMMIT\s+DROP\b", re.IGNORECASE)
_LASTING = re.compile(r"\bpg_(?:try_)?advisory_lock(?:_shared)?\b|\bWITH\s+HOLD\b", re.IGNORECASE)
_CURSOR = re.compile(r"DECLARE\b", re.IGNORECASE)
_BLOCK = re.compile(r"DO\b.*\b(?:RE)?SET\b", re.IGNORECASE | re.DOTALL)
_CALLED = re.compile(r'(\w+)"?\s*\(')


def left_by(statement: str, setters: frozenset[str]) -> Left:
    """How far what a statement sets, makes or locks reaches. In doubt further than it does."""
    command = _COMMAND.match(statement)
    if command:
        reach = {"local": Left.TRANSACTION, "session": Left.SESSION, "more": Left.CONNECTION}
        return reach[command.lastgroup or "more"]
    if _LASTING.search(statement):
        return Left.CONNECTION
    found = Left.NOTHING
    if _TEMPORARY.search(statement):
        found = Left.TRANSACTION if _DROPPED.search(statement) else Left.CONNECTION
    elif _CURSOR.match(statement):
        found = Left.TRANSACTION
    if _SET_CONFIG.search(statement):
        is_local = len(_LOCAL_CONFIG.findall(statement)) == len(_SET_CONFIG.findall(statement))
        found = max(found, Left.TRANSACTION if is_local else Left.SESSION)
    if _BLOCK.match(statement) or (setters and not setters.isdisjoint(_CALLED.findall(statement.lower()))):
        found = max(found, Left.SESSION)
    return found
