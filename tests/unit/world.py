"""A small world for one lane: a queue in memory with real transactions, handlers that misbehave, and faults.

It answers the statements a lane sends as the database would, so that whole lives of a lane can be played with any
faults in between, and then looked at: what took effect, how often, in which order, and what was left behind.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from onceward.errors import GuardFailed, StoreConflict, StoreError, StoreUnavailable, TransactionAborted
from onceward.flow import Begin, Call, Outcome, Query
from onceward.retry import Reject
from onceward.steps.lane import Lane
from tests.unit.builders import Clock, claim_row
from tests.unit.script import Lost, Script

Behaviour = Literal[
    "fine", "fails", "refuses", "rejects", "infrastructure", "swallows", "commits", "ends", "bad result"
]
Fault = Literal["none", "lost", "lost after", "conflict", "busy", "taken over"]


ANSWERED = (
    "begin",
    "commit",
    "rollback",
    "claim",
    "claim_isolated",
    "isolation_level",
    "fair_share",
    "park",
    "still_claimed",
    "finish",
    "settle",
    "add_attempt",
    "postpone",
    "put_off",
    "unclaim_tokens",
    "unclaim",
    "lock_keys",
    "promote",
    "store_results",
    "savepoint",
    "rollback_to_savepoint",
)


@dataclass
class Row:
    """A message in the queue."""

    seq: int
    key: int | None
    state: str = "ready"
    worker: int | None = None
    token: int | None = None
    attempts: int = 0
    isolation: int = 0


@dataclass
class State:
    """Everything a commit makes true and a rollback undoes."""

    queue: dict[int, Row] = field(default_factory=dict)
    effects: list[int] = field(default_factory=list)
    """The messages whose effects are there, in the order of their commits."""


class World:
    """Plays the database and the handlers for one lane; faults come from a list, one for each request."""

    def __init__(
        self,
        lane: Lane,
        keys: list[int | None],
        *,
        behaviour: dict[int, list[Behaviour]] | None = None,
        faults: list[Fault] | None = None,
        isolated: dict[int, int] | None = None,
    ) -> None:
        levels = isolated or {}
        self.state = State({seq: Row(seq, key, isolation=levels.get(seq, 0)) for seq, key in enumerate(keys, start=1)})
        self.keys = dict(enumerate(keys, start=1))
        self.lane = lane
        self.workers = {1}
        self._saved = self._savepoint_state = deepcopy(self.state)
        self._behaviour = {seq: list(some) for seq, some in (behaviour or {}).items()}
        self._faults = list(faults or [])
        self._swallowed = self._ended = False
        lane.worker = lambda: max(self.workers)
        answers = {name: self._faulty(name) for name in ANSWERED}
        self.script = Script({**answers, "call": self._call})

    def _faulty(self, name: str) -> Any:
        def answer(request: Any) -> Any:
            self._pass_time()
            fault = self._faults.pop(0) if self._faults and name != "rollback" else "none"
            if fault == "taken over" and name == "begin":
                self._take_over()
            if fault == "lost":
                return self._lose()
            if fault == "conflict" and name not in ("begin", "isolation_level"):
                return StoreConflict("deadlock")
            if fault == "busy" and name not in ("begin", "commit"):
                return StoreUnavailable("lock timeout")
            answered = getattr(self, f"_{name}")(request)
            if fault == "lost after" and name != "begin":
                return self._lose()
            return answered

        return answer

    def _pass_time(self) -> None:
        assert isinstance(self.lane.context.clock, Clock)
        self.lane.context.clock.now += 0.05

    def _lose(self) -> Lost:
        self.state = deepcopy(self._saved)
        return Lost()

    def _take_over(self) -> None:
        """Somebody else declares this process dead: its claims come off, and it registers anew."""
        for state in (self.state, self._saved):
            for row in state.queue.values():
                row.worker = row.token = None
        self.workers = {max(self.workers) + 1}

    # Transactions

    def _begin(self, request: Begin) -> list[Any]:
        self._saved = self._savepoint_state = deepcopy(self.state)
        self._swallowed = self._ended = False
        assert request.statement_limit > 0
        return []

    def _commit(self, _: Any) -> Any:
        self._saved = deepcopy(self.state)
        return []

    def _rollback(self, _: Any) -> list[Any]:
        self.state = deepcopy(self._saved)
        return []

    def _savepoint(self, _: Query) -> Any:
        if self._swallowed:
            return TransactionAborted("the handler swallowed an error")
        if self._ended:
            return StoreError("there is no transaction")
        self._savepoint_state = deepcopy(self.state)
        return []

    def _rollback_to_savepoint(self, _: Query) -> Any:
        if self._ended:
            return StoreError("there is no such savepoint")
        self.state, self._swallowed = deepcopy(self._savepoint_state), False
        return []

    def _call(self, request: Call) -> Outcome:
        seq = request.message.seq
        row = self.state.queue.get(seq)
        # What runs after one that has ended the transaction leaves nothing behind.
        if row and row.key is not None and row.token is not None and not self._ended:
            earlier = [one.seq for one in self.state.queue.values() if one.key == row.key and one.seq < seq]
            assert set(earlier) <= set(self.state.effects), f"{seq} runs before {earlier}"
        some = self._behaviour.get(seq, [])
        doing: Behaviour = some.pop(0) if some else "fine"
        if doing == "refuses":
            return Outcome(error=ValueError("no"))
        if doing == "rejects":
            return Outcome(error=Reject("never"))
        self.state.effects.append(seq)  # what fails below has used its transaction, and is undone with it
        if doing in ("fails", "infrastructure", "swallows"):
            errors = {"fails": ValueError("no"), "infrastructure": OSError("a deadlock")}
            self._swallowed = doing != "fails"  # the transaction is aborted: only back to the savepoint
            error = errors.get(doing, TransactionAborted("the handler swallowed an error"))
            return Outcome(error=error, infrastructure=doing == "infrastructure", touched=True)
        if doing in ("commits", "ends"):
            self.state.effects.remove(seq)  # what it committed by itself is its own affair
            self._ended = True
            return Outcome(touched=True, lost=doing == "ends")
        return Outcome(value=object() if doing == "bad result" else None, touched=True)

    # Statements

    def _free(self, *, isolation: int) -> list[Row]:
        rows = (row for row in self.state.queue.values() if row.state in ("ready", "retry"))
        return sorted(
            (row for row in rows if row.token is None and row.isolation == isolation), key=lambda row: row.seq
        )

    def _take(self, rows: list[Row], params: Any) -> list[Any]:
        if params["worker"] not in self.workers:
            return []
        for row in rows:
            row.worker, row.token = params["worker"], params["token"]
        return [claim_row(row.seq, hashed=row.key, attempts=row.attempts) for row in rows]

    def _claim(self, request: Query) -> list[Any]:
        free = [row for row in self._free(isolation=0) if row.state == "retry" or row.seq >= request.params["cursor"]]
        free = [row for row in free if row.key is None or row.key not in request.params["held"]]
        return self._take(free[: request.params["limit"]], request.params)

    def _fair_share(self, _: Query) -> list[Any]:
        return [(len(self._free(isolation=0)),)]

    def _claim_isolated(self, request: Query) -> list[Any]:
        level, limit = request.params["level"], request.params["limit"]
        assert limit <= max(1, level - 1)
        return self._take(self._free(isolation=level)[:limit], request.params)

    def _isolation_level(self, _: Query) -> list[Any]:
        return [(max((level for level in range(1, 5) if self._free(isolation=level)), default=0),)]

    def _mine(self, params: Any) -> list[Row]:
        tokens = params.get("tokens", [params.get("token")])
        seqs = params.get("seqs", [params["seq"]] if "seq" in params else list(self.state.queue))
        rows = (self.state.queue[seq] for seq in seqs if seq in self.state.queue)
        return [row for row in rows if row.worker == params["worker"] and row.token in tokens and row.token is not None]

    def _park(self, request: Query) -> list[Any]:
        mine = {row.seq for row in self._mine(request.params)}
        parked = []
        for seq in sorted(mine):
            row = self.state.queue[seq]
            if row.key is None:
                continue
            if any(one.key == row.key and one.seq < seq and one.seq not in mine for one in self.state.queue.values()):
                row.state, row.worker, row.token = "waiting", None, None
                parked.append((seq, "waiting"))
        return parked

    def _still_claimed(self, request: Query) -> list[Any]:
        return [(row.seq,) for row in self._mine(request.params)]

    def _finish(self, request: Query) -> Any:
        if self._swallowed:
            return TransactionAborted("the handler swallowed an error")
        mine = self._mine(request.params)
        if self._ended or len(mine) != request.params["expected"]:
            return GuardFailed("not in the state its writer believed")
        for row in mine:
            del self.state.queue[row.seq]
        return []

    def _promote(self, request: Query) -> list[Any]:
        for key in request.params["key_hashes"]:
            waiting = [row for row in self.state.queue.values() if row.key == key and row.state == "waiting"]
            if waiting:
                min(waiting, key=lambda row: row.seq).state = "ready"
        return []

    def _settle(self, request: Query) -> list[Any]:
        mine = self._mine(request.params)
        for row in mine:
            row.state, row.worker, row.token = request.params["state"], None, None
            row.attempts += 1
        return [(row.seq,) for row in mine]

    def _postpone(self, request: Query) -> list[Any]:
        mine = self._mine(request.params)
        for row in mine:
            row.state, row.worker, row.token = "retry", None, None
        return [(row.seq, 1.0) for row in mine]

    _put_off = _postpone

    def _unclaim_tokens(self, request: Query) -> list[Any]:
        for row in self._mine(request.params):
            row.worker = row.token = None
        return []

    _unclaim = _unclaim_tokens

    def _nothing(self, _: Any) -> list[Any]:
        return []

    _add_attempt = _lock_keys = _store_results = _nothing
