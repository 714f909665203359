"""`onceward try` and `onceward effects`: what a handler would do, and what became of a call of its outside world."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onceward import Inbox, Message, Reject, RetryPolicy
from onceward.cli import target
from onceward.cli.app import application

PROGRAM = "shop:inbox"
NOT_SO, WRONG_USAGE = 1, 2
LATER = RetryPolicy(attempts=1, first=timedelta(0))


class Gone(BaseException):
    """The process is gone in the middle of a call."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program, loaded anew by each command, with one message of each type."""
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setattr(target, "load", partial(program, url))
    with program(url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            tx.execute("CREATE TABLE account (id text PRIMARY KEY, balance integer)")
            tx.execute("INSERT INTO account VALUES ('a', 100)")
        for number, kind in enumerate(("book", "refuse", "charge", "look"), 1):
            inbox.receive(source="shop", id=f"m{number}", type=kind, data={"amount": number})
    return url


def program(url: str, named: str = PROGRAM) -> Inbox:
    inbox = Inbox(url)
    inbox.context.program = named

    @inbox.on("book")
    def book(message: Message, tx: Any) -> dict[str, Any]:
        tx.execute("UPDATE account SET balance = balance + :n WHERE id = 'a'", {"n": message.data["amount"]})
        tx.execute("INSERT INTO account VALUES ('new', 0)")
        message.send("booked", {"amount": message.data["amount"]}, key="k")
        return {"booked": message.data["amount"]}

    @inbox.on("refuse")
    def refuse(message: Message) -> None:
        raise Reject(f"no {message.type}")

    @inbox.on("charge", retry=LATER)
    def charge(message: Message) -> None:
        message.once("charge", gone)

    @inbox.on("look")
    def look(_message: Message, tx: Any) -> int:
        return len(tx.execute("SELECT * FROM account").fetchall())

    return inbox


def gone() -> None:
    raise Gone


def call(*words: str) -> Result:
    return CliRunner().invoke(application, words)


@pytest.mark.usefixtures("url")
class TestTry:
    """All of it is shown, and nothing stays."""

    def test_what_a_handler_would_do(self) -> None:
        for _ in range(2):  # the second finds everything as it was
            result = call("try", PROGRAM, "1")
            assert result.exit_code == 0
            shown = result.output
            for text in (
                '{"booked": 1}',
                "2 statements",
                "UPDATE account SET balance = balance + :n WHERE id = 'a'  {'n': 1}",
                "2 changed rows",
                '{"id": "a"} balance: 100 -> 101',
                '{"id": "new", "balance": 0}',
                "would send",
                'k    {"amount": 1}',
                "all of it was rolled back",
            ):
                assert text in shown, shown
            assert "traceback" not in shown

    def test_a_handler_that_raises(self) -> None:
        """Exit code 1, with the traceback and what would become of the message."""
        result = call("try", PROGRAM, "2")
        assert result.exit_code == NOT_SO
        for text in ("raised", "no refuse", "dead", "0 statements", "0 changed rows", "traceback", "in refuse"):
            assert text in result.output

    def test_a_call_to_the_outside_is_stopped_and_shown(self) -> None:
        result = call("try", PROGRAM, "3")
        assert result.exit_code == 0
        for text in ("external calls", "charge", "stopped"):
            assert text in result.output

    def test_a_handler_that_only_looks(self) -> None:
        shown = call("try", PROGRAM, "4").output
        assert "1 statement\n" in shown
        assert "would send" not in shown

    def test_as_json(self) -> None:
        result = call("try", PROGRAM, "1", "--json")
        assert result.exit_code == 0
        report = json.loads(result.output)
        assert [(one["kind"], one["after"]) for one in report["changes"]] == [
            ("update", {"id": "a", "balance": 101}),
            ("insert", {"id": "new", "balance": 0}),
        ]

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (("--store", "sqlite:///x.db", "1"), WRONG_USAGE, "has no handlers"),
            ((PROGRAM, "99"), NOT_SO, "99"),
            ((PROGRAM,), WRONG_USAGE, "name one message"),
        ],
    )
    def test_what_cannot_be_tried(self, words: tuple[str, ...], code: int, text: str) -> None:
        result = call("try", *words)
        assert (result.exit_code, text in result.output) == (code, True), result.output


class TestEffects:
    """A call that was begun and not recorded as done."""

    @pytest.fixture(autouse=True)
    def unknown(self, url: str) -> None:
        with program(url) as inbox:
            for _ in range(2):  # the first dies in the call; the second finds that it was begun, and asks
                with suppress(Gone):
                    inbox.drain()

    def test_it_is_listed(self) -> None:
        shown = call("effects", "list", PROGRAM).output
        assert "charge" in shown
        (effect,) = json.loads(call("effects", "list", PROGRAM, "--json").output)
        assert (effect["seq"], effect["name"]) == (3, "charge")

    @pytest.mark.parametrize(
        ("answer", "more", "then"),
        [
            ("happened", ("--result", '{"id": "ch_1"}'), "is known already"),
            ("did-not-happen", (), "has no effect named 'charge'"),
        ],
    )
    def test_it_is_settled_once(self, answer: str, more: tuple[str, ...], then: str) -> None:
        """With the command that comes next; a second answer is refused."""
        settle = ("effects", "settle", PROGRAM, "3", "charge", answer, *more, "--reason", "seen at the bank")
        result = call(*settle)
        assert result.exit_code == 0, result.output
        assert f"charge of message 3: {answer.replace('-', ' ')}" in result.output
        assert "redrive shop:inbox 3 --reason 'seen at the bank'" in result.output
        assert call("effects", "list", PROGRAM).output.strip() == "no external call has an unknown outcome"
        again = call(*settle)
        assert (again.exit_code, then in again.output) == (NOT_SO, True), again.output

    def test_as_json(self) -> None:
        result = call("effects", "settle", PROGRAM, "3", "charge", "happened", "--reason", "x", "--json")
        assert json.loads(result.output) == {"seq": 3, "name": "charge", "happened": True}

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (("3", "charge", "perhaps"), WRONG_USAGE, "its outcome, for example"),
            (("3", "charge"), WRONG_USAGE, "its outcome, for example"),
            (("3", "charge", "happened", "--result", "{"), WRONG_USAGE, "--result is not JSON"),
            (("3", "refund", "happened"), NOT_SO, "refund"),
            (("99", "charge", "happened"), NOT_SO, "99"),
        ],
    )
    def test_what_cannot_be_settled(self, words: tuple[str, ...], code: int, text: str) -> None:
        result = call("effects", "settle", PROGRAM, *words, "--reason", "x")
        assert (result.exit_code, text in result.output) == (code, True), result.output
        assert call("effects", "list", PROGRAM, "--json").output.count("charge") == 1
