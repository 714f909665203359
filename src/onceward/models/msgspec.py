"""Models of msgspec: a Struct, or whatever msgspec can decode that has one in it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from onceward.domain import payload
from onceward.models.model import misfit, name_of

_PLACE = re.compile(r" - at `(key in )?\$([^`]*)`$")
_OF_THE_DATA = re.compile(r"(Invalid (?:enum )?value|unknown field|Invalid (?:enum )?tag).*", re.DOTALL)
_INDEX = re.compile(r"\[[^\]]*\]")


class MsgspecModel:
    """Whatever msgspec can decode."""

    def __init__(self, wanted: Any) -> None:
        self.name = name_of(wanted)
        self._wanted = wanted if isinstance(wanted, type) else ()
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(wanted)

    def read(self, data: Any, body: bytes | None) -> Any:
        """As the class."""
        if body is None and self._wanted and isinstance(data, msgspec.Struct) and isinstance(data, self._wanted):
            return data
        try:
            return self._decoder.decode(payload.encode(data) if body is None else body)
        except msgspec.ValidationError as error:
            problem = misfit(self.name, [_told(error)])
        raise problem

    def schema(self) -> dict[str, Any]:
        """As msgspec makes it."""
        return msgspec.json.schema(self._decoder.type)


def _told(error: msgspec.ValidationError) -> tuple[str, str]:
    """The field and what is wrong with it; what the model itself raised may quote the data, and is named only."""
    text = str(error)
    place = _PLACE.search(text)
    path = _INDEX.sub("[]", place[2]).removeprefix(".") if place else ""
    if error.__cause__ is not None:
        return path, f"refused with {type(error.__cause__).__name__}"
    return path, _OF_THE_DATA.sub(r"\1", _PLACE.sub("", text))
