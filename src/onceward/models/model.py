"""The model of a handler: what it wants `message.data` to be, found in its annotation, checked when it is registered.

Invariant: data that does not fit is refused with the fields and what is wrong with them, never with their values, which
may be private; and in the same words for every message with the same mistake, so that they are counted together.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

from onceward.domain import checks
from onceward.domain.data_types import Model
from onceward.errors import ConfigurationError, DataInvalid

MOST_SHOWN = 10
"""Fields that are named in one error."""


def model_of(where: str, wanted: Any) -> Model | None:
    """The model of what an annotation names; None where that is whatever comes. Raises `ConfigurationError`."""
    if wanted is Any or wanted is object or isinstance(wanted, typing.TypeVar):
        return None
    parts = list(_parts(wanted))
    try:
        if any(hasattr(part, "__pydantic_core_schema__") for part in parts):
            from onceward.models.pydantic import PydanticModel  # noqa: PLC0415 - a package that the program brings

            return PydanticModel(wanted)
        if any(hasattr(part, "__struct_config__") for part in parts):
            from onceward.models.msgspec import MsgspecModel  # noqa: PLC0415 - as above

            return MsgspecModel(wanted)
        from onceward.models.plain import PlainModel  # noqa: PLC0415 - only for handlers with models

        return PlainModel(wanted)
    except (TypeError, NameError, AttributeError) as error:
        raise ConfigurationError(f"{where}: data cannot be read as {name_of(wanted)}: {error}") from error


def _parts(wanted: Any) -> Iterable[Any]:
    yield wanted
    for part in typing.get_args(wanted):
        yield from _parts(part)


def name_of(wanted: Any) -> str:
    """What it is called in a sentence."""
    if isinstance(wanted, type) and not typing.get_args(wanted):
        return wanted.__name__
    return checks.shown(wanted).replace("typing.", "")


def misfit(name: str, problems: Iterable[tuple[str, str]]) -> DataInvalid:
    """The error of data that does not fit: each field once, also where it is in many elements of a list."""
    return DataInvalid(name, tuple(dict.fromkeys(problems)), most=MOST_SHOWN)
