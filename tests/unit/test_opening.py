"""How a store is found: by the scheme of a URL, among what is installed, or as the object that is given (R66)."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox
from onceward.stores.protocol import GROUP, OURS, Store, StoreOptions, open_store
from onceward.stores.sqlite.store import SqliteStore

OPTIONS = StoreOptions("onceward_", timedelta(seconds=1))


def test_our_stores_are_entry_points_like_those_of_others() -> None:
    assert {entry.name: entry.value for entry in entry_points(group=GROUP)} == {
        scheme: f"{module}:open_store" for scheme, module in OURS.items()
    }


def test_an_unknown_scheme_names_what_is_installed_and_what_to_do() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Inbox("oracle://:canary@host/shop")
    for part in ("no store for 'oracle' URLs", "postgres, postgresql", "sqlite:///path", "install the package"):
        assert part in str(caught.value)
    assert "canary" not in str(caught.value)


def elsewhere(url: str, options: StoreOptions) -> Store:
    """What another package registers for `file://` URLs."""
    return SqliteStore(url.replace("file:", "sqlite:"), options.prefix, options.lock_wait)


def test_the_store_of_another_package_is_found_by_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, elsewhere)
    with Inbox("file://", prefix="other_") as inbox:
        inbox.migrate()
        assert inbox.receive(source="shop", id="1", type="order.paid").status == "accepted"
        assert (inbox.context.prefix, inbox.url) == ("other_", "sqlite://")


def test_what_is_no_function_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "a text")
    with pytest.raises(ConfigurationError, match=r"else\.where:store .* must be a function of a URL"):
        open_store("file://", OPTIONS)


def test_a_store_object_keeps_its_own_prefix() -> None:
    store = open_store("sqlite://", OPTIONS)
    with pytest.raises(ConfigurationError, match="prefix='mine_' must be left out: the store has its own, 'onceward_'"):
        Inbox(store, prefix="mine_")
    with Inbox(store, prefix="onceward_") as inbox:
        assert inbox.store is store


def registered(monkeypatch: pytest.MonkeyPatch, opening: Any) -> None:
    """Another package is installed, with an entry point for `file`."""
    monkeypatch.setattr(EntryPoint, "load", lambda _: opening)
    entries = EntryPoints([EntryPoint("file", "else.where:store", GROUP)])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: entries)
