"""What reaches a terminal: colours of ours, and never a character that steers it."""

from __future__ import annotations

import re
import unicodedata

from onceward.cli.output import plain
from onceward.cli.text import ago, span, visible
from tests.cli.conftest import Shop, dead_message

NASTY = "\x1b]0;owned\x07 \x1b[2J \x1b[31mred\x9b5m \r over \x7f \u202egnp.exe \u2028 [bold]bold[/bold]"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def test_nothing_in_a_message_can_steer_the_terminal(sqlite_shop: Shop) -> None:
    inbox = sqlite_shop.inbox
    seq = dead_message(sqlite_shop, "gnp\u202e.exe", why=NASTY, order="7\u2028")
    other = inbox.receive(source="so\u202eurce", id="x", type="ty\u202epe", headers={NASTY: NASTY}, body=NASTY.encode())
    inbox.receive(source="so\u202eurce", id="x", type="ty\u202epe", body=f"other {NASTY}".encode())
    inbox.admin.redrive(seq, reason=NASTY)
    inbox.drain()
    store = ("--store", sqlite_shop.url)
    commands = (
        ("show", *store, str(seq)),
        ("list", *store),
        ("show", *store, str(other.seq)),
        ("explain", *store, str(seq), "--tracebacks"),
        ("explain", *store, str(other.seq)),
        ("explain", *store, str(seq), "--json"),
        ("quarantine", "list", *store),
        ("status", *store),
        ("doctor", *store),
        ("list", *store, "--json"),
        ("show", *store, str(other.seq), "--json"),
        ("quarantine", "list", *store, "--json"),
        ("redrive", *store, "--all", "--yes", "--reason", "x"),
        ("status", f"{NASTY}:inbox"),
    )
    outputs = sqlite_shop.terminals(*commands)
    for words, shown in zip(commands, outputs, strict=True):
        # Colours are ours; a colour that a message asked for would be spelled out like everything else.
        rest = COLOUR.sub("", shown).replace("\r\n", "\n")
        hidden = {char for char in rest if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}} - {"\n", "\t"}
        assert not hidden, (words, hidden)
        assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred" in outputs[0]
    assert "[bold]bold[/bold]" in outputs[0]


def test_bulk_in_a_terminal_shows_asks_and_counts(sqlite_shop: Shop) -> None:
    for number in range(60):
        sqlite_shop.deliver("bad", number, why="x")
    dead_message(sqlite_shop, 60)
    words = ("redrive", "--store", sqlite_shop.url, "--all", "--reason", "fixed")
    refused = sqlite_shop.terminal(*words, keys="n\n")
    assert "redrive 61 dead messages? [y/N]" in refused
    assert sqlite_shop.inbox.admin.stats().dead == 61
    assert "redriven: 61 messages" in sqlite_shop.terminal(*words, keys="y\n")
    assert sqlite_shop.inbox.admin.stats().dead == 0


def test_visible_text_and_spans() -> None:
    assert visible("a\tb\n\x1b\x9b\u202e\U000e0001") == "a\\x09b\\x0a\\x1b\\x9b\\u202e\\U000e0001"
    assert visible("a\tb\nc\r", lines=True) == "a\tb\nc\\x0d"
    assert [span(seconds) for seconds in (-1, 0.04, 9.9, 59, 61, 3600, 90061)] == [
        "0.0 s",
        "0.0 s",
        "9.9 s",
        "59 s",
        "1 min 1 s",
        "1 h",
        "1 d 1 h",
    ]
    assert ago(None) == ""
    assert plain({"a": (b"\xff", b"text")}) == {"a": [{"base64": "/w=="}, "text"]}


def test_colours_only_where_they_are_seen_and_wanted(sqlite_shop: Shop) -> None:
    dead_message(sqlite_shop, 1)
    words = ("list", "--store", sqlite_shop.url)
    assert COLOUR.search(sqlite_shop.terminal(*words))
    assert "\x1b" not in sqlite_shop.call(*words).stdout
    sqlite_shop.environment["NO_COLOR"] = "1"
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", sqlite_shop.terminal(*words))


def test_a_narrow_terminal_still_shows_whole_ids(sqlite_shop: Shop) -> None:
    sqlite_shop.deliver("plain", "a" * 50)
    shown = sqlite_shop.terminal("list", "--store", sqlite_shop.url, columns=40)
    assert "a" * 50 in shown.replace("\r\n", "")
