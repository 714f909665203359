"""Every code block of README and docs runs as it stands, from an empty folder, on the stores it names (R69)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pages.reader import FILES, RUN, Block, Page, pages, read
from tests.pages.runner import Run, commands, matches

if TYPE_CHECKING:
    from pathlib import Path

PAGES = pages()
RUNS = [(page, store) for page in PAGES if page.runs for store in page.stores]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "store"), RUNS, ids=[f"{page.name}-{store}" for page, store in RUNS])
def test_the_code_of_a_page_runs_as_it_stands(
    page: Page, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = "".join(block.text for block in page.blocks if not block.reason)
    wanted = store == "postgresql" or "postgresql://" in text
    postgres = request.getfixturevalue("postgres_url") if wanted else None
    Run(page, tmp_path, store=store, postgres=postgres).all()


def test_every_block_says_in_what_it_is_written() -> None:
    wrong = [
        f"{page.name}:{block.line}: {block.language or 'no language'}"
        for page in PAGES
        for block in page.blocks
        if block.language not in RUN | FILES
    ]
    assert not wrong, "python and console blocks are run; shell commands are console blocks, with $ before each"


def test_what_is_not_run_has_a_reason_to_read() -> None:
    """A word is no reason."""
    reasons = [(page.name, block) for page in PAGES for block in page.blocks if block.reason]
    short = [f"{name}:{block.line}: {block.reason}" for name, block in reasons if len((block.reason or "").split()) < 3]
    assert not short


SOME_PAGE = """
<!-- page: stores=sqlite,postgresql given=shop -->
<!-- test: file=shop.py -->
```python
from onceward import Inbox
inbox = Inbox("sqlite:///shop.db")
```

<!-- test: exit=2 -->
```console
$ onceward status nonsense
Error: 'nonsense' is not ...
$ echo one \\
    two
one two
```

A list:

  <!-- test: needs a cluster that is not here -->
  ```python
  nothing
  ```

```python
import shop
assert shop.inbox
```
"""


def page_of(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(text)
    page = read(path)
    page.path = PAGES[0].path.with_name("page.md")
    return page


def test_a_page_is_read_with_its_marks(tmp_path: Path) -> None:
    page = page_of(tmp_path, SOME_PAGE)
    assert (page.stores, page.given) == (["sqlite", "postgresql"], ["shop"])
    assert [(block.language, block.file, block.exit, block.reason) for block in page.blocks] == [
        ("python", "shop.py", 0, None),
        ("console", None, 2, None),
        ("python", None, 0, "needs a cluster that is not here"),
        ("python", None, 0, None),
    ]
    assert list(commands(page.blocks[1].text)) == [
        ("onceward status nonsense", ["Error: 'nonsense' is not ..."]),
        ("echo one  two", ["one two"]),
    ]
    assert page.blocks[2] == Block(21, "python", "nothing\n", reason="needs a cluster that is not here")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```python\nraise ValueError('here')\n```\n", "page.md:1\nTraceback"),
        ("```python\nimport os\nos._exit(3)\n```\n", "the program ended"),
        ("```console\n$ false\n```\n", "exit code 1, expected 0"),
        ("```console\n$ echo one\ntwo\n```\n", "expected:\ntwo"),
        ("```console\n$ pip install 'onceward[nonsense]'\n```\n", "no such extra"),
        ("```console\n$ make nonsense\n```\n", "no 'nonsense' in the Makefile"),
        ("```toml\ninbox = \n```\n", "Invalid value"),
    ],
)
def test_code_that_does_not_run_is_found(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception) as raised:  # noqa: PT011 - an assertion, or what a parser raises
        Run(page_of(tmp_path, text), tmp_path / "empty", store="sqlite", postgres=None).all()
    assert told in str(raised.value)


def test_a_program_in_the_background_is_waited_for_and_ended(tmp_path: Path) -> None:
    text = "```console\n$ bash -c 'echo $$ > pid; sleep 1; touch ready; sleep 600' &\n$ cat ready pid\n...\n```\n"
    Run(page_of(tmp_path, text), tmp_path, store="sqlite", postgres=None).all()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_dots_stand_for_what_differs() -> None:
    assert matches(["a ... c", "...", "end"], ["a b c", "x", "y", "end"])
    assert matches(["a", "..."], ["a"]) is False
    assert not matches(["a ... c"], ["a b d"])
    assert matches([], ["whatever"])
