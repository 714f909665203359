"""A handler that does its work elsewhere is not called exactly-once (D48)."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import Inbox, Message
from onceward.admin.doctor import examine
from onceward.admin.guarantees import in_force
from onceward.runtime.runner import perform
from onceward.steps.prune import save_uses

EVERY = ("tx", "apart", "sends", "calls", "ignores")


def program(store_url: str) -> Inbox:
    """A process with handlers of every kind."""
    inbox = Inbox(store_url)
    inbox.migrate()

    @inbox.on("tx")
    def uses(message: Message, tx: Any) -> None:
        del message
        tx.execute("SELECT 1")

    @inbox.on("apart", guarantee="exactly-once")
    async def works_elsewhere(message: Message, tx: Any) -> None:
        del message, tx

    @inbox.on("sends")
    def sends(message: Message, tx: Any) -> None:
        del tx
        message.send("sent", {}, to="elsewhere")

    @inbox.on("calls")
    def calls(message: Message, tx: Any) -> None:
        del tx
        message.once("call", lambda: None)

    @inbox.on("ignores")
    def ignores_some(message: Message, tx: Any) -> None:
        if message.id == "ignores 2":
            tx.execute("SELECT 1")

    return inbox


def levels(inbox: Inbox) -> dict[str, str]:
    return {one.type: one.level for one in in_force(inbox.context, inbox.store) if one.type in EVERY}


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_handler_that_never_uses_tx_is_at_least_once(
    store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """D48: the log warns once, and the doctor of another process says so; who sends, calls or ignores is not meant."""
    monkeypatch.setattr("onceward.admin.guarantees._store", lambda _: ())  # the server of the tests keeps nothing
    with program(store_url) as inbox, program(store_url) as other:
        assert set(levels(inbox).values()) == {"exactly-once"}
        for number in range(4):
            for kind in EVERY:
                message: Any = {"source": "shop", "id": f"{kind} {number}", "type": kind, "data": {}}
                inbox.process(**message) if how == "process" else inbox.receive(**message)
        inbox.drain()
        told = [one.getMessage() for one in caplog.records if "without a statement through tx" in one.getMessage()]
        assert [text.partition(" has finished 3 messages of apart")[0][-15:] for text in told] == ["works_elsewhere"]
        perform(inbox.store, lambda: save_uses(inbox.context))
        expected = dict.fromkeys(EVERY, "exactly-once") | {"apart": "at-least-once"}
        assert levels(inbox) == levels(other) == expected
        (finding,) = (one for one in examine(other) if "works_elsewhere" in one.what)
        assert (finding.level, "at-least-once" in finding.what) == ("warning", True)
        caplog.clear()
        other._check_guarantees()  # it is declared, and the start is not refused: it may be mended by now
        assert [one.levelname for one in caplog.records if "works_elsewhere" in one.getMessage()] == ["WARNING"]
        # Mended: the first use is told at once, for good.
        (mended,) = (one for one in other.context.registry if one.type == "apart")
        mended.use.through_tx = True
        perform(other.store, lambda: save_uses(other.context))
        assert levels(other)["apart"] == "exactly-once"
    with program(store_url) as later:
        assert levels(later)["apart"] == "exactly-once"
