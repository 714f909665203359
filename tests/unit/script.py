"""A session without a database: it answers each request from a script, and writes down what it was asked.

Invariants it checks by itself, in every test that drives a step: statements stand between a begin and a commit or
rollback; a commit ends its transaction; after a failure nothing is sent but a rollback or a reconnect; a lost
connection answers nothing until it is replaced; nobody waits or calls the outside world inside a transaction of
onceward's own; and every parameter a statement uses, in either dialect, is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from onceward.errors import StoreUnavailable
from onceward.flow import Begin, Commit, Do, Each, Flow, Outcome, Query, Reconnect, Rollback, Wait, run_sync
from onceward.stores.statements import load

T = TypeVar("T")

# Statements without a result: whoever sends them does not look at the answer.
SILENT = frozenset(
    [
        "add_attempt",
        "add_audit",
        "add_name",
        "adopt",
        "add_poll",
        "advance",
        "advance_inline",
        "record_use",
        "rotate_partition",
        "rollback_to_savepoint",
        "bring_forward",
        "count_duplicates",
        "finish",
        "finish_direct",
        "end_poll",
        "enqueue",
        "erase",
        "forget_bodies",
        "forget_effects",
        "forget_worker",
        "give_turn",
        "hand_on",
        "hold",
        "keep_effects",
        "unclaim_all",
        "lock_catalog",
        "lock_keys",
        "lock_worker",
        "savepoint",
        "park",
        "pauses",
        "keys_in_front",
        "postpone",
        "promote",
        "put_off",
        "unclaim_tokens",
        "unclaim",
        "remove_unhandled",
        "notify",
        "set_body_key",
        "store_results",
        "take_over",
        "touch_catalog",
        "unhandled_types",
        "hold_catalog",
    ]
)

_POSTGRES_PARAMETER = re.compile(r"%\((\w+)\)[sb]")
_SQLITE_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Lost:
    """An answer: the connection breaks."""


class Turns:
    """An answer: another one each time it is asked; the last stays."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def take(self) -> Any:
        """What it is this time."""
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Script:
    """Plays the part of a session."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self._answers: dict[str, Any] = {
            "reconnect": True,
            "call": Outcome(touched=True),
            "postpone": [(1, 1.0)],
            **(answers or {}),
        }
        self.requests: list[Any] = []
        """Every request, one by one."""
        self.trips: list[Any] = []
        """Every request as it was yielded: a tuple where several travelled together."""
        self.transactions: list[str] = []
        """A line for each transaction, in words; what stands outside of one has a line of its own."""
        self.is_open = False
        self.is_failed = False
        self.is_lost = False

    def run(self, flow: Flow[T]) -> T:
        """Drive a step to its end; it must not leave a transaction open."""
        result = run_sync(flow, self.perform)
        assert not self.is_open, f"the step ended inside a transaction: {self.transactions[-1]}"
        return result

    def perform(self, request: Any) -> Any:
        """Answer a request or a tuple of them."""
        self.trips.append(request)
        if isinstance(request, tuple):
            return tuple(self._one(part) for part in request)
        return self._one(request)

    def params(self, name: str) -> list[dict[str, Any]]:
        """The parameters of every request for a statement; one for each record where it came with several."""
        found: list[dict[str, Any]] = []
        for request in self.requests:
            if isinstance(request, Query) and request.name == name:
                found.append(dict(request.params))
            elif isinstance(request, Each) and request.name == name:
                found += [{**request.shared, **record} for record in request.records]
        return found

    def all(self, kind: type[T]) -> list[T]:
        """Every request of a kind."""
        return [request for request in self.requests if isinstance(request, kind)]

    def _one(self, request: Any) -> Any:
        name = word(request)
        self.requests.append(request)
        self._follow(name, request)
        answer = self._answer(name, request)
        if isinstance(answer, Lost):
            self.is_lost = self.is_failed = True
            self.is_open = False
            raise StoreUnavailable("the connection is lost")
        if isinstance(answer, BaseException):
            self.is_failed = True
            raise answer
        return answer

    def _follow(self, name: str, request: Any) -> None:
        """Check the discipline of transactions, and write the transactions down."""
        if isinstance(request, Query | Each):
            check_parameters(request)
        if isinstance(request, Begin):
            assert not self.is_open, "a transaction begins inside another"
            assert not self.is_failed or self.is_lost, (
                "a transaction begins on a connection that is still in a failed one"
            )
            self.is_open = True
            self.transactions.append(name)
            return
        if isinstance(request, Reconnect | Wait | Do):
            assert self.is_failed or not self.is_open, f"{name} inside a transaction"
            self.is_open = self.is_open and not isinstance(request, Reconnect)
            self.transactions.append(name)
        elif self.transactions and (self.is_open or isinstance(request, Rollback)):
            self.transactions[-1] += f" {name}"
        else:
            raise AssertionError(f"{name} outside of a transaction")
        if isinstance(request, Rollback | Reconnect):
            self.is_failed = False
        assert not self.is_failed or self.is_lost, f"{name} after a failure; only rollback or reconnect may follow one"
        if isinstance(request, Rollback | Commit):
            self.is_open = False

    def _answer(self, name: str, request: Any) -> Any:
        if isinstance(request, Reconnect):
            answer = self._scripted(name, request)
            if answer is True:
                self.is_lost = self.is_failed = False
            return answer
        if self.is_lost and not isinstance(request, Begin | Wait | Do):
            return Lost()
        if isinstance(request, Do) and name not in self._answers:
            return made(request)
        if isinstance(request, Wait):
            return self._scripted(name, request) if name in self._answers else None
        if isinstance(request, Begin | Commit | Rollback) or name in SILENT:
            return self._scripted(name, request) if name in self._answers else []
        assert name in self._answers, f"the script has no answer for {name}"
        return self._scripted(name, request)

    def _scripted(self, name: str, request: Any) -> Any:
        answer = self._answers[name]
        if isinstance(answer, Turns):
            answer = answer.take()
        if callable(answer):
            answer = answer(request)
        return answer


def word(request: Any) -> str:
    """The name of a statement, or the kind of another request."""
    return request.name if isinstance(request, Query | Each) else type(request).__name__.lower()


def made(request: Do) -> Outcome:
    """Make a call as the runtime does."""
    try:
        return Outcome(value=request.call())
    except Exception as error:  # noqa: BLE001 - handed back to the step
        return Outcome(error=error)


def check_parameters(request: Query | Each) -> None:
    """Every parameter that the statement uses, in either dialect, is given."""
    records: Sequence[Mapping[str, Any]] = [request.params] if isinstance(request, Query) else request.records
    shared: Mapping[str, Any] = {} if isinstance(request, Query) else request.shared
    for record in records:
        missing = parameters(request.name) - {*record, *shared}
        assert not missing, f"{request.name} needs {sorted(missing)}"


@cache
def parameters(name: str) -> frozenset[str]:
    """The parameters of a statement, in either dialect."""
    postgres = " ".join(load("postgres", "p_")[name])
    sqlite = " ".join(load("sqlite", "p_")[name])
    found = {*_POSTGRES_PARAMETER.findall(postgres), *_SQLITE_PARAMETER.findall(sqlite)}
    return frozenset(found) - {"now"}
