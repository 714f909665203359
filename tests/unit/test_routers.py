"""Routers: what an inbox gets from them, how types and options are put together, and how packages are searched."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, RetryPolicy, Router


def handle(message: Message, tx: Any) -> None:
    """Do nothing."""


def handle_too(message: Message, tx: Any) -> None:
    """Do nothing, either."""


ANY_ROUTER: Any = Router
"""Of any type, to be given what is wrong."""


@dataclass
class Refund:
    """Says its type itself."""

    __message_type__ = "refund.asked"
    __message_version__ = 2

    cents: int


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox("sqlite://", service="shop") as inbox:
        yield inbox


def types(inbox: Inbox) -> set[tuple[str, str, int]]:
    return {(one.consumer, one.type, one.version) for one in inbox.context.registry}


def test_types_begin_with_the_prefixes_of_all_routers_around(inbox: Inbox) -> None:
    inner, outer = Router(prefix="order."), Router(prefix="eu.")
    inner.on("paid")(handle)
    inner.upcast("paid", 0)(lambda data: {**data, "upcast": True})
    outer.include(inner)
    outer.on("started")(handle)
    inbox.include(outer)
    assert types(inbox) == {("shop", "eu.order.paid", 1), ("shop", "eu.started", 1)}
    assert len(inbox.context.registry.find("shop", "eu.order.paid", 0)[1]) == 1


def test_a_model_says_its_whole_type(inbox: Inbox) -> None:
    router = Router(prefix="eu.", version=9)
    router.on(Refund)(handle)
    router.upcast(Refund, 1)(lambda data: data)
    inbox.include(router)
    assert types(inbox) == {("shop", "refund.asked", 2)}
    assert len(inbox.context.registry.find("shop", "refund.asked", 1)[1]) == 1


def test_the_nearest_option_counts(inbox: Inbox) -> None:
    """A handler's own before its router's, before that of the router around, before the inbox's."""
    mine, theirs = RetryPolicy(attempts=2), RetryPolicy(attempts=3)
    inner = Router(consumer="mail", retry=theirs, timeout=7.0)
    outer = Router(consumer="books", group=5, timeout=8.0, key="order_id", circuit=None)
    outer.include(inner)
    inner.on("paid", retry=mine, key=None)(handle)
    inner.on("sent")(handle)
    outer.on("left")(handle)
    inbox.include(outer)
    paid, sent, left = (next(one for one in inbox.context.registry if one.type == kind) for kind in SOME)
    assert (paid.consumer, paid.retry, paid.timeout, paid.key) == ("mail", mine, timedelta(seconds=7), None)
    assert (sent.consumer, sent.retry, sent.timeout, sent.key) == ("mail", theirs, timedelta(seconds=7), "order_id")
    assert (left.consumer, left.retry, left.timeout) == ("books", inbox.settings.retry, timedelta(seconds=8))
    assert all((one.group, one.breaker) == (5, None) for one in (paid, sent, left))


SOME = ("paid", "sent", "left")


def test_handlers_that_come_later_come_to_all_who_include_the_router(inbox: Inbox) -> None:
    inner, outer = Router(), Router()
    outer.include(inner)
    with Inbox("sqlite://", service="tests") as other:
        for one in (inbox, other):
            one.include(outer)
        inner.on("paid")(handle)
        inner.upcast("paid", 0)(lambda data: data)
        assert types(inbox) == {("shop", "paid", 1)}
        assert types(other) == {("tests", "paid", 1)}
        assert inbox.context.registry.find("shop", "paid", 0)


def test_a_router_keeps_no_inbox_alive() -> None:
    router = Router()
    inbox = Inbox("sqlite://")
    inbox.include(router)
    inbox.close()
    seen = weakref.ref(inbox)
    del inbox
    gc.collect()
    assert seen() is None
    router.on("paid")(handle)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda inbox: inbox.include(included_twice(inbox)), "handle handles version 1 of 'paid' for consumer 'shop' "),
        (lambda inbox: inbox.include(in_conflict(inbox)), "handle_too and handle both handle version 1 of 'paid'"),
        (lambda inbox: inbox.include(handle), "include(): router=<function handle at"),
        (lambda _: ANY_ROUTER(prefix=None), "Router: prefix=None must be text"),
        (lambda _: ANY_ROUTER(retries=5), "Router has no argument retries=; its arguments are prefix, consumer, key"),
        (lambda _: ANY_ROUTER().on("paid", retries=5), "@inbox.on('paid') has no argument retries=;"),
        (lambda _: in_itself(), "include(): a router cannot be in itself"),
        (lambda inbox: inbox.discover(""), "discover(): package='' must be text that is not empty"),
        (lambda inbox: inbox.discover("tests.nowhere.at_all"), "discover(): there is no module 'tests.nowhere.at_all'"),
        (lambda inbox: inbox.discover("tests.waiting"), "discover('tests.waiting') found no handlers: write router ="),
    ],
)
def test_what_is_wrong_is_refused(inbox: Inbox, wrong: Callable[[Inbox], object], said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        wrong(inbox)
    assert str(error.value).startswith(said)


def included_twice(inbox: Inbox) -> Router:
    router, around = Router(), Router()
    router.on("paid")(handle)
    around.include(router)
    inbox.include(around)
    return router


def in_conflict(inbox: Inbox) -> Router:
    inbox.on("paid")(handle)
    router = Router()
    router.on("paid")(handle_too)
    return router


def in_itself() -> None:
    first, second, third = Router(), Router(), Router()
    first.include(second)
    second.include(third)
    third.include(first)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes a package that can be imported; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"found_{tmp_path.name}".replace("-", "_")

    def write(**modules: str) -> str:
        for module, source in {"__init__": "", **modules}.items():
            path = tmp_path.joinpath(name, *module.split("__in__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(f"from onceward import Router\n{source}")
        return name

    yield write
    for one in [one for one in sys.modules if one.partition(".")[0] == name]:
        sys.modules.pop(one)  # and nothing else: a driver that comes twice has every error class twice


PAID = "router = Router()\nrouter.on('paid')(lambda message: None)\n"
SENT = "router = Router(prefix='mail.')\nrouter.on('sent')(lambda message: None)\n"


def test_the_routers_of_a_package_are_found_also_in_packages_below(inbox: Inbox, package: Callable[..., str]) -> None:
    """Whatever else is in its modules; nothing of it imports the inbox, and its program does not run."""
    name = package(
        paid=PAID,
        words="router = 'not one'\n",
        plain="",
        __main__="raise SystemExit",
        deep__in____init__="",
        deep__in__sent=SENT,
    )
    inbox.discover(name)
    assert types(inbox) == {("shop", "paid", 1), ("shop", "mail.sent", 1)}
    inbox.discover(name)
    inbox.discover(f"{name}.paid")
    assert len(inbox.context.registry) == 2


def test_a_router_that_another_one_includes_comes_with_that(inbox: Inbox, package: Callable[..., str]) -> None:
    """Also when its module is found first, and when the package shows it under the same name."""
    name = package(
        paid=PAID,
        zone="from . import paid\nrouter = Router(prefix='eu.')\nrouter.include(paid.router)\n",
        same="from .zone import router\n",
    )
    inbox.discover(name)
    assert types(inbox) == {("shop", "eu.paid", 1)}


def test_an_import_that_fails_is_said_with_its_module(inbox: Inbox, package: Callable[..., str]) -> None:
    name = package(broken="\n\nraise ValueError('no settings')\n")
    with pytest.raises(
        ConfigurationError, match=rf"importing {name}\.broken failed: ValueError: no settings \(.*broken\.py, line 4\)"
    ) as error:
        inbox.discover(name)
    assert isinstance(error.value.__cause__, ValueError)


def test_a_package_that_lacks_another_one_is_not_said_to_be_missing(inbox: Inbox, package: Callable[..., str]) -> None:
    name = package(broken="import no_such_package\n")
    with pytest.raises(
        ConfigurationError, match=rf"importing {name}\.broken failed: ModuleNotFoundError: .*no_such_package"
    ):
        inbox.discover(name)
