"""What docs/testing.md shows is what the example prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_the_example_prints() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "careless.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    page = (ROOT / "docs" / "testing.md").read_text()
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    printed = run.stdout.splitlines()
    for line in "".join(blocks).splitlines():
        assert line in printed, line


def test_the_page_shows_the_handlers_of_the_example() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    example = (ROOT / "examples" / "careless.py").read_text()
    for statement in re.findall(r"^    (tx\.execute\(.*\)|charge = .*)$", page, re.MULTILINE):
        assert statement.replace("provider.", "self.provider.") in example, statement


def test_the_page_about_stores_shows_the_reference_store_as_it_is() -> None:
    page = (ROOT / "docs" / "writing-a-store.md").read_text()
    shown = re.findall(r"<!-- test: it stands in (\S+); [^\n]* -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(shown) >= 8
    for path, block in shown:
        assert lines(block) in lines((ROOT / path).read_text()), f"{path} has changed:\n{block}"


def lines(code: str) -> str:
    """Without what a formatter decides: a method is shown as a function is."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
