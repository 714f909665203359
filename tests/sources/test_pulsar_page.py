"""The figures on Pulsar's page are those of the recorded run."""

from __future__ import annotations

import json

from bench.pulsar import LEAST, PAGE, RECORD, with_line


def test_the_line_is_made_from_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_line(page)


def test_an_effect_takes_a_third_of_the_textbook_or_less() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    assert found["onceward"] >= LEAST * found["textbook"]
