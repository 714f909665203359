"""docs/webhooks.md says what is so."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from onceward.webhooks import Limits
from tests.webhooks.senders import SENDERS

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
