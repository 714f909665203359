"""Annotations: what a function says about its parameters, at run time, also where it says so as text.

Text is looked up where the function was written, never run: what is not found stays the text that it is.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import types
import typing
from typing import Any

_MISSING = object()


def signature_of(function: Any) -> inspect.Signature | None:
    """The signature of a function, with names that exist for type checkers only as text; None where it has none."""
    late: Any = {}
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # noqa: PLC0415 - newer Pythons have it

        late = {"annotation_format": Format.FORWARDREF}
    try:
        return inspect.signature(function, **late)
    except (TypeError, ValueError):  # built in, without a signature
        return None


def alternatives(annotation: Any, function: Any) -> list[Any]:
    """The classes that an annotation allows; what is not found stays the text that it is."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(annotation, str):
        return _read(annotation, function)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(annotation) for one in alternatives(part, function)]
    if origin is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0], function)
    return [origin or annotation]


def _read(text: str, function: Any) -> list[Any]:
    """As `alternatives`, for an annotation that is text. It is looked up, never run."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return [text]
    return _looked_up(tree, function)


def _looked_up(node: ast.expr, function: Any) -> list[Any]:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            parts = [left, right]
        case ast.Subscript(value=value, slice=part):
            inner = part.elts[0] if isinstance(part, ast.Tuple) else part
            parts = [inner if ast.unparse(value).rpartition(".")[2] in ("Annotated", "Optional") else value]
        case ast.Constant(value=None):
            return [type(None)]
        case ast.Constant(value=str(text)):
            return _read(text, function)
        case _:
            return [_found(ast.unparse(node), function)]
    return [one for part in parts for one in _looked_up(part, function)]


def _found(name: str, function: Any) -> Any:
    """What a dotted name means where a function was written; the name itself where that is not there."""
    plain = inspect.unwrap(getattr(function, "func", function))
    plain = plain if hasattr(plain, "__globals__") else getattr(type(plain), "__call__", plain)  # noqa: B004 - of an object
    try:
        closed = inspect.getclosurevars(plain).nonlocals
    except (TypeError, ValueError):
        closed = {}
    first, *rest = name.split(".")
    found: Any = {**vars(builtins), **getattr(plain, "__globals__", {}), **closed}.get(first, _MISSING)
    for part in rest:
        found = getattr(found, part, _MISSING)
    return name if found is _MISSING else found


class NotSeen(Exception):
    """A name of an annotation means nothing at run time, or is more than a name."""


def argument_of(generic: Any, annotation: Any, function: Any) -> tuple[Any, bool] | None:
    """What stands in the brackets behind a generic class, in an annotation, and whether that is inside of another one.

    None where the annotation does not name the class with brackets; raises `NotSeen` where what is in them is unknown.
    """
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(annotation, str):
        return _in_brackets(generic, annotation, function)
    try:
        tree = ast.parse(annotation.strip(), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return argument_of(generic, tree.value, function)
    while isinstance(tree, ast.Subscript) and ast.unparse(tree.value).rpartition(".")[2] == "Annotated":
        tree = tree.slice.elts[0] if isinstance(tree.slice, ast.Tuple) else tree.slice
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            name = ast.unparse(node.value)
            value = _found(name, function)
            # A name that only type checkers see is believed.
            if value is generic or (value == name and name.rpartition(".")[2] == generic.__name__):
                return _meant(node.slice, function), node is not tree
    if isinstance(tree, ast.Subscript):
        _meant(tree.value, function)  # with brackets, and what it is is known
    found = _found(ast.unparse(tree), function)
    return None if isinstance(found, str) else _in_brackets(generic, found, function)


def _in_brackets(generic: Any, annotation: Any, function: Any) -> tuple[Any, bool] | None:
    for part in typing.get_args(annotation):
        if typing.get_origin(annotation) is generic:
            return evaluated(part, function), False
        found = None if isinstance(part, str | list) else _in_brackets(generic, part, function)
        if found is not None:
            return found[0], typing.get_origin(annotation) is not typing.Annotated
    return None


def evaluated(annotation: Any, function: Any) -> Any:
    """What an annotation means, also where it is text; raises `NotSeen` where that is not known."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(annotation, str):
        return annotation
    try:
        return _meant(ast.parse(annotation.strip(), mode="eval").body, function)
    except SyntaxError:
        raise NotSeen(annotation) from None


def _meant(node: ast.expr, function: Any) -> Any:  # noqa: PLR0911 - one for each kind of node
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return evaluated(text, function)
        case ast.Constant(value=value) if value is ...:
            return value
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return typing.Union[_meant(left, function), _meant(right, function)]  # noqa: UP007 - of what is known here
        case ast.Subscript(value=value, slice=part):
            outer = _meant(value, function)
            parts = part.elts if isinstance(part, ast.Tuple) else [part]
            if outer is typing.Literal:
                return outer[tuple(ast.literal_eval(one) for one in parts)]
            inner = tuple(_meant(one, function) for one in parts)
            return outer[inner if len(inner) > 1 else inner[0]]
        case ast.Name() | ast.Attribute():
            name = ast.unparse(node)
            found = _found(name, function)
            if isinstance(found, str) and found == name:
                raise NotSeen(name)
            return found
    raise NotSeen(ast.unparse(node))
