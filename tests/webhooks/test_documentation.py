"""docs/webhooks.md says what is so."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.webhooks import Hmac, Limits
from onceward.webhooks.request import Headers, Request
from tests.webhooks.senders import NOW, SENDERS

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
UNITS = {"hours": timedelta(hours=1), "days": timedelta(days=1)}


def test_the_windows_of_the_page_are_the_verifiers() -> None:
    rows = re.findall(r"^\| `(\w+)\(.*\| (\d+) (hours|days) \|$", PAGE, re.MULTILINE)
    said = {name: int(number) * UNITS[unit] for name, number, unit in rows}
    made = [sender.verifier(sender.secrets) for sender in SENDERS if sender.name != "generic"]
    assert said == {type(verifier).__name__: verifier.redelivery for verifier in made}


def test_the_limits_of_the_page_are_the_defaults() -> None:
    arguments = re.search(r"limits=Limits\((.*?)\)\)`", PAGE)
    assert arguments is not None
    shown = {
        name: eval(value, {"timedelta": timedelta})  # noqa: S307 - our own page
        for name, value in re.findall(r"(\w+)=(timedelta\(seconds=\d+\)|None|[\d *]+)", arguments[1])
        if name != "seconds"
    }
    assert Limits(**shown) == Limits()
    assert set(shown) == set(Limits.__slots__)


def test_cloud_events_are_identified_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By source and id together, both signed."""
    monkeypatch.setenv("WAREHOUSE_SECRET", "a secret of the warehouse")
    (example,) = re.findall(r"```python\n(Hmac\(\n {4}\"warehouse\".*?)```", PAGE, re.DOTALL)
    verifier: Hmac = eval(example, {"Hmac": Hmac, "os": os})  # noqa: S307 - our own page

    def event(source: str, event_id: str) -> tuple[str | None, str | None]:
        text = f"{source}\n{event_id}\nstock.counted\n{{}}"
        signature = hmac.new(b"a secret of the warehouse", text.encode(), hashlib.sha256).hexdigest()
        named = {"ce-source": source, "ce-id": event_id, "ce-type": "stock.counted", "x-signature": signature}
        headers = Headers([(name.encode(), value.encode()) for name, value in named.items()])
        found = verifier.verify(Request(headers=headers, body=b"{}"), NOW)
        assert found.unsigned == ()
        return found.id, found.type

    first = event("/halls/1", "7")
    assert first == event("/halls/1", "7")
    assert first[1] == "stock.counted"
    assert len({first, event("/halls/2", "7"), event("/halls/1", "8")}) == 3
