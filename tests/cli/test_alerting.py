"""`onceward alerts`: what needs a person, and a test of those who are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from onceward import Inbox, Message, Reject
from onceward.cli.app import application

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROGRAM = """
from onceward import Inbox
from onceward.admin.alerts import Alert, Rules
from onceward.admin.concerns import Threshold

inbox = Inbox({url!r})
told = []


def tell(alert: Alert) -> None:
    told.append(alert)


def broken(alert: Alert) -> None:
    raise RuntimeError("the pager is away")


if {alerts}:
    rules = Rules(types={{"order.paid": Threshold(dead=5)}}, runbooks="https://wiki.example/")
    inbox.admin.alert(tell, broken, rules=rules)
"""


def told(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(application, ["alerts", *words])
    return result.exit_code, result.output


def refuse(message: Message) -> None:
    raise Reject(message.id)


def test_what_needs_a_person_is_listed_with_the_way_there(store_url: str) -> None:
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.on("order.paid")(refuse)
        assert told("list", "--store", store_url) == (0, "Healthy: no message needs an operator\n")
        assert told("list", "--store", store_url, "--json") == (0, "[]\n")
        inbox.receive(source="shop", id="evt_1", type="order.paid", data={})
        inbox.drain()
    code, text = told("list", "--store", store_url, "--json")
    (one,) = json.loads(text)
    assert (code, one["kind"], one["number"]) == (1, "dead", 1)
    assert one["command"] == f"onceward list --store {store_url} --status dead"
    assert one["runbook"] == "docs/runbooks/poison-message.md"
    assert "1 dead message needs a decision" in told("list", "--store", store_url)[1]


def test_a_program_has_its_own_thresholds_and_its_hooks_are_tested(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.on("order.paid")(refuse)
        inbox.receive(source="shop", id="evt_1", type="order.paid", data={})
        inbox.drain()
    monkeypatch.chdir(tmp_path)
    for name, alerts in (("telling_program", True), ("silent_program", False)):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(url=sqlite_url, alerts=alerts))
    assert told("list", "telling_program:inbox")[0] == 0  # one is fewer than five
    assert told("list", "silent_program:inbox")[0] == 1
    code, text = told("test", "telling_program:inbox", "--json")
    assert (code, json.loads(text)) == (
        1,
        [{"hook": "tell", "error": ""}, {"hook": "broken", "error": "RuntimeError: the pager is away"}],
    )
    code, text = told("test", "silent_program:inbox")
    assert (code, "has no alerts" in text) == (2, True)
