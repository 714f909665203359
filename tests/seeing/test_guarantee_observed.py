"""A handler that does its work elsewhere is not called exactly-once (D48)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from onceward import Inbox, Message
from onceward.admin.doctor import examine
from onceward.admin.guarantees import in_force
from onceward.cli.app import application
from onceward.runtime.runner import perform
from onceward.steps.prune import save_uses
from tests.dashboard.conftest import visiting

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
        assert [(one.type, one.consumer) for one in other.admin.effects_outside()] == [("apart", inbox.context.service)]
        (finding,) = (one for one in examine(other) if "works_elsewhere" in one.what)
        assert (finding.level, "at-least-once" in finding.what) == ("warning", True)
        caplog.clear()
        other._running._check_guarantees()  # it is declared, and the start is not refused: it may be mended by now
        assert [one.levelname for one in caplog.records if "works_elsewhere" in one.getMessage()] == ["WARNING"]
        # Mended: the first use is told at once, for good.
        (mended,) = (one for one in other.context.registry if one.type == "apart")
        mended.use.through_tx = True
        perform(other.store, lambda: save_uses(other.context))
        assert levels(other)["apart"] == "exactly-once"
        assert other.admin.effects_outside() == []
    with program(store_url) as later:
        assert levels(later)["apart"] == "exactly-once"


def test_who_has_declared_it_is_not_warned_of_it(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown all the same: a fact stays one."""
    monkeypatch.setattr("onceward.admin.guarantees._store", lambda _: ())
    with Inbox(store_url) as inbox:
        inbox.migrate()

        @inbox.on("mail", guarantee="at-least-once")
        def send_mail(message: Message) -> None:
            del message

        for number in range(3):
            inbox.receive(source="shop", id=f"{number}", type="mail", data={})
        inbox.drain()
        perform(inbox.store, lambda: save_uses(inbox.context))
        (finding,) = (one for one in examine(inbox) if "send_mail" in one.what)
        assert (finding.level, "at-least-once" in finding.what) == ("ok", True)
        shown = CliRunner().invoke(application, ["status", "--store", store_url]).output
        assert f"effects not in the transaction: mail for {inbox.context.service}" in shown
        found = json.loads(CliRunner().invoke(application, ["status", "--store", store_url, "--json"]).output)
        assert found["effects_outside"] == [{"consumer": inbox.context.service, "type": "mail"}]
        with visiting(inbox, anonymous="viewer") as visitor:
            page = visitor.get("/").text
        assert "Effects not in the transaction" in page
        assert "<strong>mail</strong></a> for " in page
