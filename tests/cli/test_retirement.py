"""`onceward unsubscribe`: look, refuse, ask, retire (D31)."""

from __future__ import annotations

import json

from click.testing import CliRunner

from onceward import Inbox
from onceward.cli.app import application


def test_unsubscribe(sqlite_url: str) -> None:
    """A preview changes nothing; unfinished messages are a refusal without --discard."""

    def told(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(application, ["unsubscribe", "--store", sqlite_url, *words])
        return result.exit_code, result.output

    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.on("paid", consumer="old")(lambda message, tx: None)  # noqa: ARG005 - never runs
        inbox.receive(source="shop", id="1", type="paid", data={})
        code, shown = told("old", "--preview", "--json")
        assert (code, json.loads(shown)) == (0, {"found": [{"type": "paid", "unfinished": 1}]})
        assert told("old", "--reason", "x")[0] == 2, "nobody can be asked"
        assert told("old", "--yes")[0] == 2, "no reason"
        code, shown = told("old", "--reason", "x", "--yes")
        assert (code, "1 unfinished" in shown) == (2, True)
        code, shown = told("old", "paid", "--discard", "--reason", "x", "--yes", "--json")
        assert (code, json.loads(shown)) == (0, {"unsubscribed": ["paid"], "discarded": 1})
        assert told("old", "--preview")[0] == 1
        assert told()[0] == 2
