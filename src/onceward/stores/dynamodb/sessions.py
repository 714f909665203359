"""Sessions: what performs requests, with boto3 in the caller's thread, and with aiobotocore awaited.

A session has no connection of its own: it has what a handler has recorded, and what a poll holds back until its end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from onceward.deferred import asyncio
from onceward.domain import identity
from onceward.errors import ContractViolation, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Call, Commit, DryRun, Outcome, Reconnect, Rollback, StoreRequest
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.dynamodb.failures import translated
from onceward.stores.dynamodb.recorder import AsyncRecorder, Recorder, SyncRecorder
from onceward.stores.dynamodb.unit import MOST_WRITES, Ask, Cancelled, Pause, Transact, alone
from onceward.stores.recording import Open, Recording, examined, is_infrastructure, shown

AskFor = Callable[[str, Mapping[str, Any]], Any]
UNSEEN = "DynamoDB shows no rows before they are written"
FOR_EACH, FOR_SENT = 4, 2
"""How many writes finishing a message takes at most, and a message that it sends."""


@dataclass(slots=True)
class Keep(StoreRequest):
    """What a message that is processed inline is to be stored as, and what gives its key back at the end."""

    what: Any
    messages: int
    release: Sequence[Ask] = ()
    """Those of these that are possible."""


class Kept(StoreRequest):
    """The answer is what was kept."""


class Hold(StoreRequest):
    """What is written from now until Commit is one transaction."""


class DynamoSession(Recording[Recorder]):
    """What a session keeps; those that perform are below."""

    def __init__(self, recorder: Callable[[], Recorder]) -> None:
        super().__init__(recorder, "the DynamoDB store")
        self.held: list[Mapping[str, Any]] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is recorded or held."""
        return self.tx is None and self.held is None

    def lent_to(self, call: Call) -> AbstractContextManager[Recorder]:
        """The transaction, while a handler has it that was called so."""
        tx = self.open_tx()
        messages = call.message if isinstance(call.message, list) else [call.message]
        tx.calls = [*tx.calls, *messages] if tx.kept is not None else messages
        tx.needed = lambda: needed(tx.calls, max(tx.messages, len(tx.calls)))
        return self.lent()

    def local(self, request: Any) -> Any:
        """What needs no answer of the database."""
        if isinstance(request, Keep):
            tx = self.open_tx()
            tx.kept, tx.messages, tx.release = request.what, request.messages, request.release
            return None
        if isinstance(request, Kept):
            return self.open_tx().kept
        if isinstance(request, Hold):
            self.held = []
            return None
        if isinstance(request, Open):
            self.forget()
        return self.keep(request)

    def asked(self, request: Transact) -> tuple[str, dict[str, Any]] | None:
        """The operation that writes; None where it is held back, or there is nothing to write."""
        if self.held is not None:
            self.held += request.writes
            return None
        writes = [*request.writes, *(self.open_tx().writes if request.ends_tx else ())]
        # What a handler or a caller wrote need not have a condition: made twice by the client, it counts once as a
        # transaction alone.
        single = alone(writes[0]) if len(writes) == 1 and not request.ends_tx else None
        return together(writes) if single is None else single

    def explained(self, request: Transact, cancelled: Cancelled) -> StoreConflict:
        """Whose condition did not hold: the handler's own are no reason to try the same again."""
        codes = [reason.get("Code") for reason in cancelled.reasons]
        ours, others = codes[: len(request.writes)], codes[len(request.writes) :]
        if "ConditionalCheckFailed" in others and "ConditionalCheckFailed" not in ours:
            return StoreConflict("a condition of what the handler wrote does not hold any more; nothing was written")
        return cancelled

    def released(self) -> Sequence[Ask]:
        """What gives the key of an inline message back."""
        return () if self.tx is None else self.tx.release

    def committed(self) -> tuple[str, dict[str, Any]] | None:
        """The operation that writes what was held back."""
        writes, self.held = self.held, None
        return together(writes or ())

    def forget(self) -> None:
        """Nothing is recorded or held any more."""
        self.tx = self.held = None

    def cut(self) -> None:
        self.is_cut = True


class SyncSession(DynamoSession):
    """With boto3, whose calls wait."""

    def __init__(self, ask: AskFor) -> None:
        super().__init__(lambda: SyncRecorder(self._ask))
        self._client_ask = ask

    def perform(self, request: Any) -> Any:  # noqa: PLR0911 - one for each kind
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        self.check()
        if isinstance(request, Ask):
            return self._ask(request.operation, request.arguments)
        if isinstance(request, Transact):
            return self._transact(request)
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        if isinstance(request, Call):
            with self.lent_to(request) as tx:
                return limited(outcome(request, tx, is_infrastructure), tx)
        if isinstance(request, DryRun):
            with self.lent_to(request.call) as tx:
                return shown(limited(outcome(request.call, tx, is_infrastructure), tx), tx, UNSEEN)
        if isinstance(request, Commit) and self.held is not None:
            return self._write(self.committed())
        if isinstance(request, Commit | Rollback):
            return self._roll_back()
        return self.local(request)

    def _transact(self, request: Transact) -> None:
        try:
            self._write(self.asked(request))
        except Cancelled as cancelled:
            raise self.explained(request, cancelled) from cancelled
        if request.ends_tx:
            self._roll_back()

    def _roll_back(self) -> None:
        release = self.released()
        self.forget()
        with suppress(StoreUnavailable):  # its time will be over
            for ask in release:
                with suppress(Cancelled):  # not ours any more
                    self._ask(ask.operation, ask.arguments)

    def _write(self, operation: tuple[str, dict[str, Any]] | None) -> None:
        if operation is not None:
            self._ask(*operation)

    def _ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return self._client_ask(operation, arguments)
        except Exception as error:
            raise translated(error) from error

    def _reconnect(self) -> bool:
        self._roll_back()
        self.is_open = not self.is_cut
        return self.is_open and self._answers()

    def _answers(self) -> bool:
        try:
            self._ask("list_tables", {"Limit": 1})
        except StoreUnavailable:
            return False
        return True

    def close(self) -> None:
        self._roll_back()
        self.is_open = False


class AsyncSession(DynamoSession):
    """With aiobotocore, whose calls are awaited."""

    def __init__(
        self,
        ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]],
        end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(lambda: AsyncRecorder(self._ask))
        self._client_ask, self._end = ask, end
        self._ending: object = None

    async def perform(self, request: Any) -> Any:  # noqa: PLR0911 - one for each kind
        if isinstance(request, tuple):
            return tuple([await self.perform(part) for part in request])
        if isinstance(request, Reconnect):
            return await self._reconnect()
        self.check()
        if isinstance(request, Ask):
            return await self._ask(request.operation, request.arguments)
        if isinstance(request, Transact):
            return await self._transact(request)
        if isinstance(request, Pause):
            return await asyncio.sleep(request.seconds)
        if isinstance(request, Call):
            with self.lent_to(request) as tx:
                return limited(await awaited_outcome(request, tx, is_infrastructure), tx)
        if isinstance(request, DryRun):
            with self.lent_to(request.call) as tx:
                return shown(limited(await awaited_outcome(request.call, tx, is_infrastructure), tx), tx, UNSEEN)
        if isinstance(request, Commit) and self.held is not None:
            return await self._write(self.committed())
        if isinstance(request, Commit | Rollback):
            return await self._roll_back()
        return self.local(request)

    async def _transact(self, request: Transact) -> None:
        try:
            await self._write(self.asked(request))
        except Cancelled as cancelled:
            raise self.explained(request, cancelled) from cancelled
        if request.ends_tx:
            await self._roll_back()

    async def _roll_back(self) -> None:
        release = self.released()
        self.forget()
        await self._let_go(release)

    async def _let_go(self, release: Sequence[Ask]) -> None:
        with suppress(StoreUnavailable):  # its time will be over
            for ask in release:
                with suppress(Cancelled):  # not ours any more
                    await self._ask(ask.operation, ask.arguments)

    async def _write(self, operation: tuple[str, dict[str, Any]] | None) -> None:
        if operation is not None:
            await self._ask(*operation)

    async def _ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self._client_ask(operation, arguments)
        except Exception as error:
            raise translated(error) from error

    async def _reconnect(self) -> bool:
        await self._roll_back()
        self.is_open = not self.is_cut
        try:
            await self._ask("list_tables", {"Limit": 1})
        except StoreUnavailable:
            return False
        return self.is_open

    def abandon(self) -> None:
        """What it holds is let go by a task of its own: here is no time to wait."""
        release = self.released()
        self.forget()
        self.is_open = False
        if release or self._end is not None:
            self._ending = asyncio.ensure_future(self._leave(release))

    async def close(self) -> None:
        release = self.released()
        self.forget()
        self.is_open = False
        await self._leave(release)

    async def _leave(self, release: Sequence[Ask]) -> None:
        await self._let_go(release)
        if self._end is not None:
            await self._end()


def together(writes: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """One transaction. Its token makes a repetition of the same call, by the client, safe for ten minutes."""
    if not writes:
        return None
    if len(writes) > MOST_WRITES:
        raise StoreError(
            f"{len(writes)} writes do not fit into one transaction of DynamoDB, which has at most {MOST_WRITES}"
        )
    return "transact_write_items", {"TransactItems": list(writes), "ClientRequestToken": identity.new_id()}


def needed(messages: Sequence[Any], count: int) -> int:
    """How many writes finishing messages takes at most, with what they send."""
    sent = sum(len(message.outbox.deliveries) for message in messages if message.outbox)
    return FOR_EACH * count + FOR_SENT * sent


def limited(called: Outcome, tx: Recorder) -> Outcome:
    """What a handler did; the transaction is for it alone, unless many are handled as they come."""
    called = examined(called, tx)
    if called.error is None:
        try:
            tx.refuse_too_many()
        except ContractViolation as violation:
            called.error = violation
    called.leaves = tx.kept is None or len(tx.writes) > tx.room() // 2
    return called
