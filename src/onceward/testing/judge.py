"""The judgement: what a case led to, compared with what an undisturbed run leads to, in words that say why.

Invariant: the words are about the handler, which the reader can change, never about the kit.
"""

from __future__ import annotations

from typing import Any

from onceward.testing.laboratory import Findings, Laboratory
from onceward.testing.report import Case, Kind, Statement, brief, compared

_ESCAPED = "it does not go through tx: it was committed on another connection or by itself, and a retry repeats it"
_SENT = "a message left outside of the handler's transaction; use message.send(...), or inbox.send(..., tx=tx)"
_AT_LEAST_ONCE = (
    "why: a call outside of the database is at least once: an attempt that is undone has made it already. Use "
    "message.once(...); or pass message.idempotency_key(...) along and say external_at_least_once=True"
)


class Judge:
    """Compares what a case led to with what the undisturbed run led to."""

    def __init__(self, laboratory: Laboratory, expected: Findings) -> None:
        self._laboratory = laboratory
        self._subject = laboratory.subject
        self.expected = expected

    def leftovers(self) -> list[str] | None:
        """What a failed attempt left behind, which should be nothing; None then, or when the message is done."""
        laboratory = self._laboratory
        if laboratory.finished():
            return None
        found = laboratory.look()
        kept = [brief(found.effect)] if found.effect != laboratory.initial.effect else []
        kept += [f"sent {brief(found.sent)}"] if found.sent != laboratory.initial.sent else []
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
        """Judge what there is now.

        `left` is what an undone attempt left, `raised` says that the handler was made to fail, `repeats` that an
        idempotent `message.once` was interrupted and may rightly make its call again.
        """
        found = self._laboratory.look()
        kind, detail = self._verdict(found, left=left, raised=raised, repeats=repeats)
        return Case(name, mode, kind, tuple(detail), statement, found.calls)

    def _verdict(self, found: Findings, *, left: list[str] | None, **known: bool) -> tuple[Kind, list[str]]:
        initial, expected = self._laboratory.initial, self.expected
        effect = compared(initial.effect, expected.effect, found.effect)
        sent = compared(initial.sent, expected.sent, found.sent)
        told = self._told()
        kept = [f"already permanent when the attempt had been undone: {', '.join(left)}"] if left else []
        if effect:
            why = _ESCAPED if left else self._why(effect, raised=known["raised"])
            return effect, [*kept, *_difference(expected.effect, found.effect), *told, f"why: {why}"]
        if sent:
            return sent, [*kept, *_difference(expected.sent, found.sent, "messages sent: "), *told, f"why: {_SENT}"]
        if left:
            return "escaped", [*kept, *told, f"why: {_ESCAPED}"]
        return ("unfinished", told) if told else self._external(found, repeats=known["repeats"])

    def _told(self) -> list[str]:
        """What onceward says about a message that did not finish."""
        story = self._laboratory.story()
        if story is None:
            return [f"the message is not in the inbox at all: {self._laboratory.problem or 'it was never accepted'}"]
        if story.status in ("done", "skipped"):
            return []
        error = story.history[-1].error.split("\n")[0] if story.history else "no attempt is recorded"
        return [f"the message is {story.status}: {error}"]

    def _external(self, found: Findings, *, repeats: bool) -> tuple[Kind, list[str]]:
        wanted, made = self.expected.calls, found.calls
        if wanted is None or made is None or made == wanted:
            return "", []
        if made < wanted:
            return "lost", [f"external effect: happened {made} times instead of {wanted}"]
        if repeats or self._subject.at_least_once:
            return "", []
        return "doubled", [
            f"external effect: happened {made} times instead of {wanted}",
            _AT_LEAST_ONCE,
        ]

    def _why(self, kind: Kind, *, raised: bool) -> str:
        if kind == "lost" and raised and self._laboratory.finished():
            return "the handler caught the error and returned, and returning commits what was done so far; let it out"
        if kind == "changed" and self._subject.others and self._subject.handler.key is None:
            return "the effect depends on the order of the messages, which only key= keeps"
        if kind == "doubled":
            return "it was done outside of tx, so undoing the attempt did not undo it"
        return "the effect of an undisturbed run is not what is there; see which part of it does not go through tx"


def _difference(expected: Any, found: Any, what: str = "") -> list[str]:
    return [f"{what}expected {brief(expected)}", f"{what}found    {brief(found)}"]
