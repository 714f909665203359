"""The verdict: what a case led to, compared with what a run without faults leads to, in words that say why.

Invariant: the words are about the handler, which the reader can change, never about the kit.
"""

from __future__ import annotations

from typing import Any

from onceward.domain.text import count
from onceward.testing.harness import Findings, Harness
from onceward.testing.report import Case, Kind, Statement, brief, compared

_ESCAPED = "it does not go through tx: it was committed on another connection or by itself, and a retry repeats it"
_SENT = "a message left outside of the handler's transaction; use message.send(...), or inbox.send(..., tx=tx)"
_NOT_CALLED = "an external call is missing: a retry took it for made"
_AT_LEAST_ONCE = (
    "a call outside of the database is at least once: an attempt that is undone has made it already. Use "
    "message.once(...); or pass message.idempotency_key(...) along and external_at_least_once=True"
)


class Verdicts:
    """Compares what a case led to with what the run without faults led to."""

    def __init__(self, harness: Harness, expected: Findings) -> None:
        self._harness = harness
        self._subject = harness.subject
        self.expected = expected

    def leftovers(self) -> list[str] | None:
        """What a failed attempt left behind, which should be nothing; None then, or when the message is done."""
        harness = self._harness
        if harness.finished():
            return None
        found = harness.look()
        kept = [brief(found.effect)] if found.effect != harness.initial.effect else []
        kept += [f"sent {brief(found.sent)}"] if found.sent != harness.initial.sent else []
        return kept or None

    def case(  # noqa: PLR0913 - what is known of a case
        self,
        name: str,
        mode: str,
        *,
        statement: Statement | None = None,
        left: list[str] | None = None,
        raised: bool = False,
        repeats: bool = False,
    ) -> Case:
        """The verdict on what there is now.

        `left` is what an undone attempt left, `raised` says that the handler was made to fail, `repeats` that an
        idempotent `message.once` was interrupted and may rightly make its call again.
        """
        found = self._harness.look()
        kind, detail, why = self._verdict(found, left=left, raised=raised, repeats=repeats)
        return Case(name, mode, kind, tuple(detail), why, statement, found.calls)

    def _verdict(self, found: Findings, *, left: list[str] | None, **known: bool) -> tuple[Kind, list[str], str]:
        initial, expected = self._harness.initial, self.expected
        effect = compared(initial.effect, expected.effect, found.effect)
        sent = compared(initial.sent, expected.sent, found.sent)
        told = self._told()
        kept = [f"already permanent when the attempt had been undone: {', '.join(left)}"] if left else []
        if effect:
            why = _ESCAPED if left else self._why(effect, raised=known["raised"])
            return effect, [*kept, *_difference(expected.effect, found.effect), *told], why
        if sent:
            return sent, [*kept, *_difference(expected.sent, found.sent, "messages sent: "), *told], _SENT
        if left:
            return "escaped", [*kept, *told], _ESCAPED
        return ("unfinished", [], told[0]) if told else self._external(found, repeats=known["repeats"])

    def _told(self) -> list[str]:
        """What onceward says about a message that did not finish."""
        detail = self._harness.detail()
        if detail is None:
            return [f"the message is not in the inbox at all: {self._harness.problem or 'it was never accepted'}"]
        if detail.status in ("done", "skipped"):
            return []
        error = detail.history[-1].error.split("\n")[0] if detail.history else "no attempt is recorded"
        return [f"the message is {detail.status}: {error}"]

    def _external(self, found: Findings, *, repeats: bool) -> tuple[Kind, list[str], str]:
        wanted, made = self.expected.calls, found.calls
        if wanted is None or made is None or made == wanted:
            return "", [], ""
        times = f"external effect: happened {count(made, 'time')} instead of {wanted}"
        if made < wanted:
            return "lost", [times], _NOT_CALLED
        if repeats or self._subject.at_least_once:
            return "", [], ""
        return "doubled", [times], _AT_LEAST_ONCE

    def _why(self, kind: Kind, *, raised: bool) -> str:
        if kind == "lost" and raised and self._harness.finished():
            return "the handler caught the error and returned, and returning commits what was done so far; let it out"
        if kind == "changed" and self._subject.others and self._subject.handler.key is None:
            return "the effect depends on the order of the messages, which only key= keeps"
        if kind == "doubled":
            return _ESCAPED
        return "the effect of a run without faults is not what is there; see which part of it does not go through tx"


def _difference(expected: Any, found: Any, what: str = "") -> list[str]:
    return [f"{what}expected {brief(expected)}", f"{what}found    {brief(found)}"]
