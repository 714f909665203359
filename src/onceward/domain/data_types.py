"""What a handler or an upcaster wants the data of its messages to be: `Message[OrderPaid]`, or `@inbox.on(OrderPaid)`.

What makes the data that is in `onceward.models`, which is loaded for those who ask for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from onceward.domain import checks
from onceward.domain.annotations import NotSeen, argument_of, evaluated, signature_of
from onceward.errors import ConfigurationError
from onceward.message import Message

if TYPE_CHECKING:
    from onceward.registry import Handler

_MARKS = ("__pydantic_core_schema__", "__struct_config__", "__dataclass_fields__", "__required_keys__")
"""What classes have whose fields say what data looks like: of Pydantic, msgspec, a dataclass, a TypedDict."""


class Model(Protocol):
    """How data becomes an object of a class."""

    name: str
    """For people."""

    def read(self, data: Any, body: bytes | None) -> Any:
        """The data as the class; raises `DataInvalid`. `body` is the bytes that the data was read from, if it was."""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the data, with what it refers to in `$defs`."""


def is_model(wanted: Any) -> bool:
    """Whether it is a class whose fields say what data looks like."""
    return isinstance(wanted, type) and any(hasattr(wanted, mark) for mark in _MARKS)


def named(where: str, wanted: Any) -> tuple[str, int]:
    """The type and the version that a model names."""
    name = getattr(wanted, "__message_type__", None)
    if name is None:
        raise ConfigurationError(
            f'{where}: {wanted.__name__} names no type of message. Write __message_type__ = "order.paid" in it, or '
            f'{where}("order.paid") and message: Message[{wanted.__name__}]'
        )
    return name, getattr(wanted, "__message_version__", 1)


def model_of_handler(handler: Handler) -> Model | None:
    """What makes the data of a handler's messages what it wants; raises `ConfigurationError` where that cannot be."""
    where = f"@inbox.on({handler.type!r})"
    annotation = _first(handler.function)
    given = handler.data_type
    if annotation is inspect.Parameter.empty or annotation is Message:
        wanted = given
    else:
        found = _argument(where, annotation, handler.function)
        if found is not None and found[1] != handler.batch:
            right = "messages: list[Message[...]]" if handler.batch else "message: Message[...]"
            raise ConfigurationError(f"{where}: batch={handler.batch} gives the handler {right}; annotate it so")
        wanted = given if found is None else found[0]
        if given is not None and wanted is not given:
            raise ConfigurationError(
                f"{where}: {handler.name} annotates its message with another class than {given.__name__}"
            )
    if wanted is None:
        return None
    if handler.raw:
        raise ConfigurationError(f"{where}: raw=True leaves the body unread, so data cannot be {checks.shown(wanted)}")
    return _model_of(where, wanted)


def upcaster_of(where: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An upcaster that takes data; one whose parameter is annotated as a model gets that."""
    annotation = _first(function)
    if annotation is inspect.Parameter.empty:
        return function
    try:
        wanted = evaluated(annotation, function)
    except NotSeen as error:
        raise _unseen(where, error) from None
    if not is_model(wanted):
        return function
    model = _model_of(where, wanted)

    def upcast(data: Any) -> Any:
        return function(data if model is None else model.read(data, None))

    upcast.model = model  # type: ignore[attr-defined] # for those who describe it
    return upcast


def _model_of(where: str, wanted: Any) -> Model | None:
    from onceward.models.model import model_of  # noqa: PLC0415 - only for handlers that ask for it

    return model_of(where, wanted)


def _first(function: Any) -> Any:
    """The annotation of the first parameter."""
    signature = signature_of(function)
    first = next(iter(signature.parameters.values()), None) if signature else None
    if first is None or first.kind in (first.VAR_POSITIONAL, first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return inspect.Parameter.empty
    return first.annotation


def _argument(where: str, annotation: Any, function: Any) -> tuple[Any, bool] | None:
    """What is in the brackets behind `Message`, and whether that is in a list."""
    try:
        found = argument_of(Message, annotation, function)
    except NotSeen as error:
        raise _unseen(where, error) from None
    if found is None:
        with suppress(NotSeen):  # what only type checkers know is plain
            wanted = evaluated(annotation, function)
            if is_model(wanted):
                name = wanted.__name__
                raise ConfigurationError(
                    f"{where}: the first parameter of a handler is its message: annotate it as Message[{name}]"
                )
    return found


def _unseen(where: str, error: NotSeen) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: what {error} is cannot be seen at run time. Import it at the top of the module, not under "
        "`if TYPE_CHECKING:`, and write it as a name"
    )
