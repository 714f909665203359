"""What a dry run shows: the statements that a handler sent, and the rows that they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from onceward.flow import Outcome


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL that a handler sent, with its parameters as text."""

    sql: str
    parameters: str

    @classmethod
    def of(cls, sql: str, parameters: Any) -> Statement:
        """A statement as it is sent; what is still to be produced one by one cannot be shown."""
        shown = parameters if isinstance(parameters, Sequence | Mapping | None) else type(parameters).__name__
        return cls(sql.strip(), "" if not shown else repr(shown))


@dataclass(frozen=True, slots=True)
class Change:
    """A row that a handler has inserted, updated or deleted."""

    table: str
    kind: Literal["insert", "update", "delete"]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


class DryRunResult(NamedTuple):
    """What a handler did, before it was undone."""

    outcome: Outcome
    statements: Sequence[Statement]
    changes: Sequence[Change]
    unseen: str = ""
    """Why the changes are not all there, where they are not."""
