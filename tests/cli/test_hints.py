"""Hints: every command that `onceward` prints can be copied, and runs as it stands."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import TYPE_CHECKING

from onceward.cli.app import COMMANDS
from tests.cli.conftest import PROGRAM, Shop, dead_message
from tests.cli.test_cli import answer, command

if TYPE_CHECKING:
    from collections.abc import Iterable

HINT = re.compile(r"onceward (?:(?: ?'[^']*')|(?: ?[\w/:.@=?&+-]*[\w/]))+")
READS = ("list", "explain", "status", "doctor", "quarantine", "effects")
"""The commands that change nothing; the others are looked at, but for `run`, which goes on."""


def hints(text: str) -> list[list[str]]:
    found = (shlex.split(one)[1:] for one in HINT.findall(text))
    return [words for words in found if words[0] in COMMANDS]  # and not "onceward needs"


def troubled(shop: Shop) -> int:
    """A shop with one of everything that a hint is about; the number of its dead message."""
    seq = dead_message(shop, 1)
    shop.deliver("plain", "twice", amount=7)
    shop.deliver("plain", "twice", amount=8)
    shop.deliver("unknown", 1)
    shop.inbox.receive(source="test", id="later", type="plain", data={}, delay=timedelta(days=1))
    shop.inbox.admin.pause(type="plain", reason="a test")
    return seq


def run_each(found: Iterable[list[str]]) -> set[str]:
    """Run what only looks; returns the names of all commands that were printed."""
    names = set()
    for words in found:
        names.add(words[0])
        if words[0] in READS:
            done = command(*words)
            assert done.exit_code in {0, 1}, (words, done.output)
            assert "Usage" not in done.output, words
    return names


def test_hints_about_a_database(any_shop: Shop) -> None:
    """With --store, --service and a prefix of its own, where it has one."""
    seq = troubled(any_shop)
    store = ("--store", any_shop.url, "--service", "shop")
    shown = answer("status", *store).output + command("doctor", *store).output
    shown += answer("explain", *store, str(seq)).output + answer("quarantine", "list", *store).output
    found = hints(shown)
    assert {"list", "quarantine", "resolve", "doctor"} & run_each(found) >= {"list", "quarantine", "resolve"}
    assert all(any_shop.url in words for words in found if words[0] != "run"), found
    (resolve,) = [words for words in found if words[0] == "resolve"]
    assert "keep-first" in answer(*resolve).output
    (resume,) = [words for words in found if words[0] == "resume"]
    assert "resumed" in answer(*resume).output
    (alike,) = [words for words in found if "--error" in words]
    assert re.search(rf"^ *{seq} ", answer(*alike).output, re.MULTILINE)


def test_hints_about_a_program(sqlite_shop: Shop) -> None:
    """MODULE:ATTR as it was named, in a process that has this shop's environment."""
    troubled(sqlite_shop)
    shown = sqlite_shop.call("status", PROGRAM).stdout + sqlite_shop.call("doctor", PROGRAM).stdout
    found = hints(shown)
    assert {"list", "quarantine", "run"} <= {words[0] for words in found}
    for words in found:
        assert PROGRAM in words, words
    (dead, *_) = [words for words in found if words[-2:] == ["--status", "dead"]]
    done = sqlite_shop.call(*dead)
    assert (done.returncode, " dead " in done.stdout) == (0, True), done.stdout + done.stderr
