"""The changes of a Python file: comparisons, conditions, numbers, and statements that are left out.

Left alone is what only people read (documentation, texts of errors, log lines), what is not run (annotations, blocks
for type checkers), and what only refuses a mistake of ours (the settings of a dataclass, `strict=` of zip).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from mutation.change import Change

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_COUNTED: dict[type[ast.operator], tuple[str, str]] = {ast.Add: (r"\+", "-"), ast.Sub: ("-", "+")}
_LOGS = {"log", "logger"}


def changes(file: str, source: bytes) -> list[Change]:
    """All of them, in the order of the file."""
    return sorted(_Finder(file, source).found(ast.parse(source)))


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._lines = [0, *(match.end() for match in re.finditer(rb"\n", source))]

    def found(self, node: ast.AST) -> Iterator[Change]:
        """Those of a node and of what is in it."""
        statement = node.lineno if isinstance(node, ast.stmt) else 0
        for change in self._of(node):
            yield replace(change, statement=statement)
        for child in self._looked_into(node):
            for change in self.found(child):
                yield change if change.statement else replace(change, statement=statement)

    def _looked_into(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=rest):
                yield from rest
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from node.args.defaults
                yield from node.body
            case ast.ClassDef():
                yield from node.body
            case ast.Call(func=ast.Name(id="zip")):
                yield from node.args
            case ast.AnnAssign(value=value):
                if value:
                    yield value
            case ast.Expr() if _is_logged(node) or isinstance(node.value, ast.Constant):
                return
            case _:
                yield from ast.iter_child_nodes(node)

    def _of(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
                yield from self._between(left, right, _COMPARED[type(operator)], "comparison")
            case ast.BoolOp(op=operator, values=values):
                word = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                for left, right in pairwise(values):
                    yield from self._between(left, right, word, "and/or")
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COUNTED:
                yield from self._between(left, right, _COUNTED[type(operator)], "arithmetic")
            case ast.UnaryOp(op=ast.Not(), operand=operand) if not isinstance(operand, ast.Yield | ast.YieldFrom):
                yield self._put(node, self._text(operand), "condition negated")
            case ast.Constant(value=bool() as value):
                yield self._put(node, str(not value), "constant")
            case ast.Constant(value=int() as value):
                yield self._put(node, str(value + 1), "constant")
            case ast.Await(value=value):
                yield self._put(node, self._text(value), "await removed")
            case _:
                yield from self._of_statement(node)

    def _of_statement(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield self._put(test, f"(not ({self._text(test)}))", "condition negated")
            case ast.Raise():
                yield self._put(node, "pass", "raise removed")
            case ast.Break() | ast.Continue():
                yield self._put(node, "continue" if isinstance(node, ast.Break) else "break", "break/continue")
            case ast.Return(value=ast.expr() as value) if not _is_falsy(value):
                yield self._put(value, "None", "returned value")
            case ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom()) if not _is_logged(node):
                yield self._put(node, "pass", "statement removed")
            case ast.AugAssign() | ast.Delete():
                yield self._put(node, "pass", "statement removed")

    def _between(self, left: ast.expr, right: ast.expr, words: tuple[str, str], kind: str) -> Iterator[Change]:
        start, end = self._end(left), self._start(right)
        word, new = words
        if found := re.search(rb"(?<![\w=!<>])" + word.encode() + rb"(?![\w=<>])", self._source[start:end]):
            yield self._change(start + found.start(), start + found.end(), new, kind)

    def _put(self, node: ast.expr | ast.stmt, new: str, kind: str) -> Change:
        return self._change(self._start(node), self._end(node), new, kind)

    def _change(self, start: int, end: int, new: str, kind: str) -> Change:
        return Change(self._file, start, end, new, kind, self._source.count(b"\n", 0, start) + 1)

    def _text(self, node: ast.expr) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"{self._file}:{node.lineno} has no end")
        return self._lines[node.end_lineno - 1] + node.end_col_offset


def _is_falsy(value: ast.expr) -> bool:
    """Whether callers that ask for the truth of it see no difference from None."""
    return isinstance(value, ast.Constant) and not value.value


def _is_logged(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _LOGS
        case _:
            return False
