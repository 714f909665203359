"""`onceward cancel` and `hasten`: messages that are not due yet (R59)."""

from __future__ import annotations

import json

from click.testing import CliRunner

from onceward import Inbox
from onceward.cli.app import application


def test_cancel_and_hasten(sqlite_url: str) -> None:
    """By filters they select what is scheduled; by number they say what is not."""

    def told(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(application, [words[0], "--store", sqlite_url, *words[1:]])
        return result.exit_code, result.output

    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.on("reminder", key="order")(lambda message, tx: None)  # noqa: ARG005 - it has no effect
        for number in (1, 2, 3):
            order = {"order": number}
            inbox.receive(source="shop", id=f"r{number}", type="reminder", data=order, delay=3600)
        code, shown = told("list", "--status", "scheduled", "--json")
        assert (code, [row["id"] for row in json.loads(shown)]) == (0, ["r3", "r2", "r1"])
        code, shown = told("cancel", "--type", "reminder", "--key", "1", "--preview", "--json")
        assert (code, json.loads(shown)) == (0, {"found": [1]})
        assert told("cancel", "--key", "1", "--reason", "paid", "--yes") == (0, _kinds() + "cancelled: 1 message\n")
        assert told("cancel", "1", "--reason", "paid") == (
            1,
            "cancelled: 0 messages\nmessage 1 was left alone: it is discarded\n",
        )
        code, shown = told("hasten", "2", "--reason", "asked", "--json")
        assert (code, json.loads(shown)) == (0, {"changed": 1, "unchanged": {}})
        assert told("hasten", "2", "--reason", "asked")[0] == 1, "it is due"
        assert told("hasten", "--type", "other", "--reason", "asked", "--yes") == (0, "no scheduled messages match\n")
        code, shown = told("status", "--json")
        assert (code, json.loads(shown)["scheduled"]) == (0, 1)
        assert inbox.drain() == 1
        assert [line.action for line in inbox.admin.audit()] == ["hasten", "discard"]


def _kinds() -> str:
    return "MESSAGES  TYPE      SOURCE  CONSUMER\n       1  reminder  shop    default\n"
