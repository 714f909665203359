"""`onceward prune`: what it removes, what it says, what it refuses."""

from __future__ import annotations

import json

from tests.cli.conftest import PROGRAM, Shop, dead_message
from tests.cli.test_cli import answer, command


def finished(shop: Shop) -> None:
    """A message that is done, and one that is dead."""
    dead_message(shop, 1)
    shop.deliver("bad", 2)
    shop.inbox.drain()
    shop.inbox.discard(2, reason="test")


def test_prune_removes_what_is_old_and_finished(any_shop: Shop) -> None:
    finished(any_shop)
    words = ("prune", "--store", any_shop.url, "--body-days", "0", "--dedupe-days", "0")
    assert json.loads(answer(*words, "--json").output) == {"messages": 1, "bodies": 0, "pages": 0, "runs": 0} | (
        {"bodies": 1} if any_shop.url.startswith("sqlite") else {}
    )
    assert any_shop.ask("SELECT count(*) FROM onceward_ledger") == [(1,)]
    assert "removed: 0 bodies, 0 pages of bodies, 0 messages forgotten" in answer(*words).output


def test_prune_needs_to_know_how_long_where_no_program_says_so(sqlite_shop: Shop) -> None:
    result = command("prune", "--store", sqlite_shop.url)
    assert result.exit_code == 2
    assert "--body-days and --dedupe-days" in result.stderr


def test_prune_keeps_what_the_program_keeps(any_shop: Shop) -> None:
    finished(any_shop)
    assert any_shop.json("prune", PROGRAM) == {"messages": 0, "bodies": 0, "pages": 0, "runs": 0}


def test_prune_shows_its_progress_on_a_terminal(sqlite_shop: Shop) -> None:
    finished(sqlite_shop)
    written = sqlite_shop.terminal("prune", PROGRAM, "--body-days", "0", "--dedupe-days", "0")
    assert "pruning" in written
    assert "removed: 1 body, 0 pages of bodies, 1 message forgotten" in written
