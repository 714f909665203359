"""What a handler wants of its data is found in its annotation, or refused in one sentence at once (R58)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional

import pytest

from onceward import ConfigurationError, Inbox, Message
from tests.typed import orders
from tests.typed.orders import PlainOrder, State

if TYPE_CHECKING:
    from onceward.message import Message as Unimported
    from tests.typed.orders import MsgspecOrder

Paid = Message[PlainOrder]


def plain(message, tx): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
def bare(message: Message, tx: Any) -> None: ...
def anything(message: Message[Any], tx: Any) -> None: ...
def unimported(message: Unimported, tx: Any) -> None: ...
def object_(message: object, tx: Any) -> None: ...
def spread(*messages: Any) -> None: ...
def one(message: Message[PlainOrder], tx: Any) -> None: ...
def quoted(message: "Message['PlainOrder']", tx: Any) -> None: ...  # noqa: UP037 - that is the case
def dotted(message: Message[orders.PlainOrder], tx: Any) -> None: ...
def alias(message: Paid, tx: Any) -> None: ...
def annotated(message: Annotated[Message[PlainOrder], "mine"], tx: Any) -> None: ...
def unimported_one(message: Unimported[PlainOrder], tx: Any) -> None: ...
def number(message: Message[int | None], tx: Any) -> None: ...
def several(message: Message[Optional[list[Literal["a", 1]]]], tx: Any) -> None: ...  # noqa: UP045 - that is the case
def many(messages: list[Message[PlainOrder]], tx: Any) -> None: ...
def sequence(messages: Sequence[Message[PlainOrder]], tx: Any) -> None: ...
def unseen(message: Message[MsgspecOrder], tx: Any) -> None: ...
def data_itself(order: PlainOrder, tx: Any) -> None: ...
def a_call(message: Message[Annotated[int, len("x")]], tx: Any) -> None: ...


@dataclass
class Unnamed:
    """It names no type."""

    number: int


@dataclass
class Named:
    """It names its type and version."""

    __message_type__: ClassVar[str] = "named"
    __message_version__: ClassVar[int] = 3
    number: int


def named(message: Message[Named], tx: Any) -> None: ...
def names(messages: list[Message[Named]], tx: Any) -> None: ...


def model_name(function: Callable[..., Any], kind: Any = "t", **options: Any) -> str | None:
    inbox = Inbox("sqlite://")
    inbox.on(kind, **options)(function)
    (handler,) = inbox.context.registry
    return handler.model.name if handler.model else None


@pytest.mark.parametrize("function", [plain, bare, anything, unimported, object_, spread, print])
def test_data_is_as_it_came_without_an_annotation(function: Callable[..., Any]) -> None:
    assert model_name(function) is None


@pytest.mark.parametrize("function", [one, quoted, dotted, alias, annotated])
def test_the_annotation_names_the_model(function: Callable[..., Any]) -> None:
    assert model_name(function) == "PlainOrder"


def test_message_itself_may_be_known_to_type_checkers_only() -> None:
    elsewhere = FunctionType(one.__code__, {"PlainOrder": PlainOrder})
    elsewhere.__annotations__ = {"message": "Message[PlainOrder]"}
    assert model_name(elsewhere) == "PlainOrder"


@pytest.mark.parametrize("function", [many, sequence])
def test_a_batch_has_messages_with_models(function: Callable[..., Any]) -> None:
    assert model_name(function, batch=True) == "PlainOrder"


def test_other_types_may_be_wanted() -> None:
    assert model_name(number) == "Optional[int]"
    assert model_name(several) == "Optional[list[Literal['a', 1]]]"


def test_a_model_may_name_type_and_version() -> None:
    inbox = Inbox("sqlite://")
    inbox.on(Named)(named)
    inbox.on(Named, version=4)(bare)
    inbox.on(Named, consumer="other", batch=True)(names)
    found = [(one.type, one.version, one.model and one.model.name) for one in inbox.context.registry]
    assert found == [("named", 3, "Named"), ("named", 4, "Named"), ("named", 3, "Named")]


REFUSED: list[tuple[Callable[..., Any], Any, dict[str, Any], str]] = [
    (unseen, "t", {}, "@inbox.on('t'): what MsgspecOrder is cannot be seen at run time. Import it at the top"),
    (
        data_itself,
        "t",
        {},
        "@inbox.on('t'): the first parameter of a handler is its message: annotate it as Message[PlainOrder]",
    ),
    (unimported_one, "t", {}, "@inbox.on('t'): what Unimported is cannot be seen at run time"),
    (a_call, "t", {}, "@inbox.on('t'): what len('x') is cannot be seen at run time"),
    (many, "t", {}, "@inbox.on('t'): batch=False gives the handler message: Message[...]; annotate it so"),
    (
        one,
        "t",
        {"batch": True},
        "@inbox.on('t'): batch=True gives the handler messages: list[Message[...]]; annotate it",
    ),
    (one, "t", {"raw": True}, "@inbox.on('t'): raw=True leaves the body unread, so data cannot be <class"),
    (one, Named, {}, "@inbox.on('named'): one annotates its message with another class than Named"),
    (bare, Unnamed, {}, '@inbox.on: Unnamed names no type of message. Write __message_type__ = "order.paid" in it, or'),
    (bare, State, {}, "@inbox.on needs the type of the messages in parentheses"),
    (bare, "t", {"keys": "a"}, "@inbox.on('t') has no argument keys=; its arguments are consumer, key, key_required"),
]


@pytest.mark.parametrize(("function", "kind", "options", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(
    function: Callable[..., Any], kind: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        model_name(function, kind, **options)
    assert str(refused.value).startswith(sentence)


def test_an_upcaster_gets_what_it_is_annotated_with() -> None:
    inbox = Inbox("sqlite://")
    inbox.on("named", version=3)(bare)
    got: list[Any] = []

    @inbox.upcast("named", 1)
    def second(data: dict[str, Any]) -> dict[str, Any]:
        got.append(data)
        return data

    @inbox.upcast("named", 2)
    def third(data: Named) -> Named:
        got.append(data)
        return data

    _, (first, then) = inbox.context.registry.find("default", "named", 1)
    assert then(first({"number": 7})) == Named(7)
    assert got == [{"number": 7}, Named(7)]
    with pytest.raises(
        ConfigurationError, match=r"@inbox.upcast\('named'\) needs the version that becomes the next one"
    ):
        inbox.upcast("named")
    with pytest.raises(ConfigurationError, match="what Unseen is cannot be seen at run time"):
        inbox.upcast("named", 0)(unseen_data)


def unseen_data(data: Unseen) -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the case
    """Of a class that is nowhere."""
