"""The cases of a proof: what can happen to a message between its sender and its effect, one function each.

Invariant: a case leaves the harness recovered; the verdict then compares. All of them are possible in production: none
does what a network, a kernel, a sender or a second worker would not do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from onceward.message import Receipt
from onceward.testing.fault import Fault, Moment, Place
from onceward.testing.harness import Harness, Message
from onceward.testing.process import FAILING, NEIGHBOUR, Process, in_real_process, kill_self, together
from onceward.testing.report import Case, Statement
from onceward.testing.verdict import Verdicts

STORE_FIRST, INLINE = "store-first", "inline"
NO_FAULT = "no fault was injected"
_OVERLAP = 0.05
"""How long a handler waits, in seconds, for another process that may be waiting for it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run without faults has shown, and so where a fault can be injected."""

    statements: tuple[Statement, ...]
    effects: tuple[tuple[str, bool], ...]
    modes: tuple[str, ...]
    real_processes: bool = False


@dataclass(slots=True)
class Bench:
    """Runs cases one after the other."""

    harness: Harness
    verdicts: Verdicts
    plan: Plan

    @property
    def message(self) -> Message:
        """The message of the proof."""
        return self.harness.subject.message

    def inline_without_fault(self) -> Case:
        """Whether the handler works inline at all."""
        return self._case(NO_FAULT, INLINE, self._inline_once)

    def _inline_once(self) -> None:
        self._inline(self.harness.process())

    def alone(self) -> Iterator[Case]:
        """Every case that does not need other messages."""
        yield from self.copies()
        for mode in self.plan.modes:
            yield from self.faults(mode)
        yield from self.dying_receivers()
        yield from self.lost_leases()
        yield from self.in_company()
        yield from self.interrupted_effects()

    def _inline(self, process: Process) -> dict[str, Receipt]:
        receipts = process.process(self.message)
        self.harness.problem = process.problem or self.harness.problem
        return receipts

    # Copies

    def copies(self) -> Iterator[Case]:
        """The same message more than once, in every state of the first copy."""
        yield self._case("it was delivered twice before it was handled", STORE_FIRST, self._twice)
        yield self._case("it was delivered again after it was done", STORE_FIRST, self._again)
        yield self._case("two copies were stored, and two workers ran, at the same time", STORE_FIRST, self._at_once)
        yield self._case("another copy arrived while the handler ran", STORE_FIRST, self._meanwhile)
        if INLINE in self.plan.modes:
            yield self._case("it was handled inline, twice in a row", INLINE, self._inline_twice)
            yield self._case("it was delivered inline while an earlier copy was queued", INLINE, self._inline_queued)
            yield self._case("another copy was handled inline while the handler ran", INLINE, self._inline_at_once)

    def _twice(self) -> None:
        process = self.harness.process()
        process.receive(self.message)
        process.receive(self.message, self.message)

    def _again(self) -> None:
        process = self.harness.process()
        process.receive(self.message)
        process.work()
        result = self._result()
        self._expect_duplicate(process.receive(self.message)[0], result)
        if INLINE in self.plan.modes:
            for receipt in self._inline(self.harness.process()).values():
                self._expect_duplicate(receipt, result)

    def _result(self) -> Any:
        detail = self.harness.detail()
        return detail.result if detail else None

    def _expect_duplicate(self, receipt: Any, result: Any) -> None:
        several = len(self.harness.inbox.admin.find(self.message["source"], self.message["id"])) > 1
        if receipt.status != "duplicate" or not receipt.finished or (receipt.result != result and not several):
            raise AssertionError(f"a copy of a finished message was received as {receipt}")

    def _at_once(self) -> None:
        processes = [self.harness.process() for _ in range(2)]
        together(*(lambda process=process: process.receive(self.message) for process in processes))
        together(*(process.work for process in processes))

    def _meanwhile(self) -> None:
        self.harness.process().receive(self.message)
        self._overlapping(lambda other: other.receive(self.message), lambda process: process.work())

    def _inline_twice(self) -> None:
        self._inline(self.harness.process())
        self._inline(self.harness.process())

    def _inline_queued(self) -> None:
        self.harness.process().receive(self.message)
        self._inline(self.harness.process())

    def _inline_at_once(self) -> None:
        self._overlapping(self._inline, self._inline)

    def _overlapping(
        self, other_does: Callable[[Process], object], first_does: Callable[[Process], object], place: Place = 1
    ) -> None:
        """Another process starts while the handler is at a statement; each may have to wait for the other."""
        other = self.harness.process()
        thread = threading.Thread(target=lambda: other_does(other), name="onceward-testing-other")

        def deed() -> None:
            thread.start()
            thread.join(_OVERLAP)

        where = place if self.plan.statements else "call"
        first_does(self.harness.process(Fault(deed, "before", where)))
        if thread.ident is not None:
            thread.join()

    # Dying, losing the connection, raising: at every statement and at the commit

    def faults(self, mode: str) -> Iterator[Case]:
        """Each deed at each place."""
        for statement in self.plan.statements:
            at = f"statement {statement.number}, `{statement.sql}`"
            yield self._with_fault(mode, f"the process died before {at}", "crash", "before", statement.number)
            yield self._with_fault(mode, f"the connection was lost before {at}", "loss", "before", statement.number)
            yield self._with_fault(mode, f"the connection was lost after {at}", "loss", "after", statement.number)
            yield self._with_fault(mode, f"the handler raised after {at}", "raise", "after", statement.number)
        yield self._with_fault(mode, "the handler raised at its very end", "raise", "after", "end")
        yield self._with_fault(mode, "the process died before the commit", "crash", "before", "commit")
        yield self._with_fault(mode, "the process died after the commit", "crash", "after", "commit")
        yield self._with_fault(mode, "COMMIT was lost, and did not happen", "loss", "before", "commit")
        yield self._with_fault(mode, "the answer to COMMIT was lost, and it had happened", "loss", "after", "commit")

    def _with_fault(self, mode: str, name: str, deed: Any, moment: Moment, place: Place) -> Case:
        def act() -> list[str] | None:
            process = self.harness.process(Fault(deed, moment, place))
            if mode == STORE_FIRST:
                self.harness.process().receive(self.message)
                self._live(process, process.work)
            else:
                self._live(process, lambda: process.process(self.message))
            return self._after(process, mode)

        statement = self.plan.statements[place - 1] if isinstance(place, int) else None
        return self._case(name, mode, act, statement=statement, raised=deed == "raise")

    def _live(self, process: Process, life: Callable[[], object]) -> None:
        """Run a process, in a real one where it is to die and that is wanted."""
        dies = process.watch.fault is not None and process.watch.fault.deed == "crash"
        if self.plan.real_processes and dies:
            process.watch.kill = kill_self
            process.crashed = in_real_process(life)
        else:
            life()

    def _after(self, process: Process, mode: str) -> list[str] | None:
        """A supervisor takes over, another process looks at what is left, the sender delivers again."""
        if process.crashed:
            self.harness.process().take_over(process.name)
        left = self.verdicts.leftovers()
        again = self.harness.process()
        if mode == INLINE:
            self._inline(again)
        else:
            again.receive(self.message)
        return left

    def dying_receivers(self) -> Iterator[Case]:
        """The process that stores the message dies; the sender delivers again."""
        moments: tuple[Moment, Moment] = ("before", "after")
        for moment in moments:

            def act(moment: Moment = moment) -> None:
                receiver = self.harness.process(Fault("crash", moment, "store"))
                self._live(receiver, lambda: receiver.receive(self.message))
                self.harness.process().take_over(receiver.name)
                self.harness.process().receive(self.message)

            yield self._case(f"the receiver died {moment} it had stored the message", STORE_FIRST, act)

    # A worker that was declared dead and is not

    def lost_leases(self) -> Iterator[Case]:
        """Another worker takes over while the handler runs; what the first one commits late must not count."""
        yield self._case("the lease was lost before the first statement", STORE_FIRST, self._lease_lost_at_start)
        # SQLite has one writer: nobody can take over while the handler's transaction is open.
        if self.plan.statements and not self.harness.inbox.store.single_writer:
            last = self.plan.statements[-1]
            name = f"the lease was lost after statement {last.number}, `{last.sql}`"
            yield self._case(name, STORE_FIRST, self._lease_lost_at_end, statement=last)

    def _lease_lost_at_start(self) -> None:
        self._lose_lease("before", "call", lambda work: work())

    def _lease_lost_at_end(self) -> None:
        threads: list[threading.Thread] = []

        def start(work: Callable[[], object]) -> None:
            threads.append(threading.Thread(target=work, name="onceward-testing-other"))
            threads[0].start()
            threads[0].join(_OVERLAP)  # it may have to wait for rows that the first one has locked

        self._lose_lease("after", len(self.plan.statements), start)
        for thread in threads:
            thread.join()

    def _lose_lease(self, moment: Moment, place: Place, start: Callable[[Callable[[], object]], object]) -> None:
        def deed() -> None:
            other = self.harness.process()
            other.take_over(slow.name)
            start(other.work)

        self.harness.process().receive(self.message)
        slow = self.harness.process(Fault(deed, moment, place))
        slow.work()

    # In a group

    def in_company(self) -> Iterator[Case]:
        """The message shares its transaction with others."""
        if self.harness.subject.handler.batch or self.harness.subject.handler.group == 1:
            return
        place = len(self.plan.statements) or "end"
        at = f"after its statement {place}" if self.plan.statements else "at its end"
        last = self.plan.statements[-1] if self.plan.statements else None
        yield self._case("a neighbour in its group failed", STORE_FIRST, self._neighbour_fails)
        yield self._case(
            f"it raised {at}, in a group",
            STORE_FIRST,
            lambda: self._group("raise", "after", place),
            statement=last,
            raised=True,
        )
        yield self._case(
            "the process died before the commit of its group",
            STORE_FIRST,
            lambda: self._group("crash", "before", "commit"),
        )

    def _neighbour_fails(self) -> list[str] | None:
        return self._group(None, "before", "call")

    def _group(self, deed: Any, moment: Moment, place: Place) -> list[str] | None:
        fault = Fault(deed, moment, place) if deed else None
        neighbours = [
            {"source": "onceward.testing", "id": kind, "type": kind, "data": None} for kind in (NEIGHBOUR, FAILING)
        ]
        self.harness.process().receive(neighbours[0], self.message, neighbours[1])
        process = self.harness.process(fault, failing=deed is None)
        self._live(process, process.work)
        return self._after(process, STORE_FIRST)

    # message.once

    def interrupted_effects(self) -> Iterator[Case]:
        """The process dies between an external call and its record; an operator records that it happened."""
        for effect, idempotent in self.plan.effects:

            def act(effect: str = effect) -> None:
                self.harness.process().receive(self.message)
                process = self.harness.process(Fault("crash", "after", f"once {effect}"))
                self._live(process, process.work)
                self._after(process, STORE_FIRST)

            name = f"the process died after the call of once({effect!r}), before its result was recorded"
            yield self._case(name, STORE_FIRST, act, repeats=idempotent)

    # Other messages

    def with_others(self) -> Iterator[Case]:
        """The message among others that were given; the verdict knows what all of them lead to."""
        everything = [self.message, *self.harness.subject.others]
        last = len(self.plan.statements) or "end"
        yield self._case(
            "all of them came again, in reverse order, after they were done",
            STORE_FIRST,
            lambda: self._all_again(everything),
        )
        yield self._case(
            "it raised at its last statement while the others were waiting",
            STORE_FIRST,
            lambda: self._among(everything, Fault("raise", "after", last)),
            raised=True,
        )
        yield self._case(
            "the process died before the commit while the others were waiting",
            STORE_FIRST,
            lambda: self._among(everything, Fault("crash", "before", "commit")),
        )
        if self.harness.subject.handler.sequence:
            yield self._case(
                "they arrived in reverse order",
                STORE_FIRST,
                lambda: self._reversed(everything),
            )

    def _reversed(self, everything: list[Message]) -> None:
        for one in reversed(everything):
            self.harness.process().receive(one)

    def _all_again(self, everything: list[Message]) -> None:
        self.harness.process().receive(*everything)
        self.harness.process().work()
        self.harness.process().receive(*reversed(everything))

    def _among(self, everything: list[Message], fault: Fault) -> None:
        self.harness.process().receive(*everything)
        process = self.harness.process(fault)
        self._live(process, process.work)
        if process.crashed:
            self.harness.process().take_over(process.name)

    def _case(self, name: str, mode: str, act: Callable[[], list[str] | None], **known: Any) -> Case:
        """Begin, act, recover, compare; an act may answer what an undone attempt has left behind."""
        self.harness.begin()
        try:
            left = act()
            self.harness.settle_down()
        except AssertionError as error:
            return Case(name, mode, "changed", (), str(error), known.get("statement"))
        case = self.verdicts.case(name, mode, left=left, **known)
        statement = known.get("statement")
        where = f" ({statement.where})" if statement and statement.where else ""
        return replace(case, name=name + where)
