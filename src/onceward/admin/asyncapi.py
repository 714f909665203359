"""What an inbox takes, as an AsyncAPI 3 document: types, versions, and the JSON schemas of their models (R58).

Invariant: it says what the code says. The schema of a message is that of the model that reads it; a message without a
model has none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceward.domain.data_types import Model
from onceward.registry import Handler, Registry
from onceward.steps.context import Context

__all__ = ["document"]

ASYNCAPI = "3.0.0"
_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is schemas by names that are free to choose."""
_DATA = ("default", "const", "enum", "examples")
"""Keywords whose value is no schema."""


@dataclass(slots=True)
class _Described:
    """A version of a type, and how it is read."""

    type: str
    version: int
    models: list[Model] = field(default_factory=list)
    """Of each consumer that has one: a message must fit all of them."""
    raw: bool = True
    """All who take it leave it unread."""
    becomes: int | None = None
    """The version that it is brought up to, where every handler gets another one."""


def document(context: Context, *, title: str | None = None, version: str | None = None) -> dict[str, Any]:
    """Describe what handlers take; `title` is the service unless given, `version` the code's.

    What handlers send is not in it: no declaration says it.
    """
    described: dict[str, _Described] = {}
    operations: dict[str, dict[str, Any]] = {}
    for handler in context.registry:
        if not handler.external:
            names = list(_taken(context.registry, handler, described))
            operations[_name(f"{handler.consumer}.{handler.type}.v{handler.version}")] = _operation(handler, names)
    messages = {name: _message(name, one) for name, one in sorted(described.items())}
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": title or context.service,
            "version": version or context.code_version or "0",
            "description": f"The messages that {context.service} accepts. A copy of a message, with the same source "
            "and id, has no further effect.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "inbox": {
                "address": None,
                "title": "Inbox",
                "description": "However a message arrives: a webhook, a broker, a call.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            }
        },
        "operations": dict(sorted(operations.items())),
        "components": {"messages": messages},
    }


def _taken(registry: Registry, handler: Handler, described: dict[str, _Described]) -> Iterator[str]:
    """The names of the version that a handler takes, and of older ones that upcasters bring up to it."""
    yield _add(described, handler.type, handler.version, handler.model, raw=handler.raw)
    own = {one.version for one in registry if (one.consumer, one.type) == (handler.consumer, handler.type)}
    version = handler.version - 1
    while (upcaster := registry.upcaster(handler.type, version)) and version not in own:
        model = getattr(upcaster, "model", None)
        yield _add(described, handler.type, version, model, raw=False, becomes=handler.version)
        version -= 1


def _add(  # noqa: PLR0913 - what is known of it
    described: dict[str, _Described],
    kind: str,
    version: int,
    model: Model | None,
    *,
    raw: bool,
    becomes: int | None = None,
) -> str:
    name = _name(f"{kind}.v{version}")
    one = described.setdefault(name, _Described(kind, version, becomes=becomes))
    one.raw = one.raw and raw
    one.becomes = one.becomes and becomes
    if model is not None and model.schema() not in [known.schema() for known in one.models]:
        one.models.append(model)
    return name


def _message(name: str, described: _Described) -> dict[str, Any]:
    message: dict[str, Any] = {"name": described.type, "title": described.type}
    if described.becomes:
        message["summary"] = f"Version {described.version}, which is brought up to version {described.becomes}."
    root = f"#/components/messages/{name}/payload"
    if described.raw:
        message["contentType"] = "application/octet-stream"
    elif len(described.models) == 1:
        message["payload"] = _schema(described.models[0].schema(), root)
    elif described.models:
        schemas = [_schema(model.schema(), f"{root}/allOf/{n}") for n, model in enumerate(described.models)]
        message["payload"] = {"allOf": schemas}
    return message


def _operation(handler: Handler, names: list[str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": "receive",
        "channel": {"$ref": "#/channels/inbox"},
        "messages": [{"$ref": f"#/channels/inbox/messages/{name}"} for name in names],
        "tags": [{"name": handler.consumer}],
    }
    if told := inspect.getdoc(handler.function):
        operation["summary"] = told.split("\n", maxsplit=1)[0]
    if isinstance(handler.key, str):
        operation["description"] = f"In order of arrival for each value of `{handler.key}`."
    elif handler.key is not None:
        operation["description"] = "In order of arrival for each key."
    return operation


def _schema(schema: Any, root: str) -> Any:
    """A schema as AsyncAPI's own, which is draft 7: references from the document's root, tuples as `items`."""
    if isinstance(schema, list):
        return [_schema(one, root) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str) and value.startswith("#/"):
            made[keyword] = f"{root}{value[1:]}"
        elif keyword == "discriminator" and isinstance(value, Mapping):  # OpenAPI's form, which AsyncAPI does not have
            made[keyword] = value["propertyName"]
        elif keyword == "prefixItems":
            made["items"] = _schema(value, root)
        elif keyword == "items" and "prefixItems" in schema:
            made["additionalItems"] = _schema(value, root)
        elif keyword in _NAMES:
            made[keyword] = {name: _schema(one, root) for name, one in value.items()}
        else:
            made[keyword] = value if keyword in _DATA else _schema(value, root)
    return made


def _name(text: str) -> str:
    """As a key of a document may be."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)
