"""The house rules that a machine can check: sizes, forbidden calls, names, statements, documentation.

Invariant: each rule is a function from source to a list of violations, and each is itself shown a violation,
so that a rule cannot go blind unnoticed. Import directions are import-linter's business (`make lint`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(__file__).parents[1] / "src" / "onceward"
STATEMENTS = PACKAGE / "stores" / "sql"

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

# Each of these runs whatever bytes or text it is given; a message is bytes from a stranger.
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "builtins.eval", "builtins.exec", "yaml.load"}
# Words that name a place in a pattern instead of a thing in this domain.
FORBIDDEN_WORDS = {"manager", "base", "abstract", "impl", "helper", "helpers", "util", "utils", "common"}

_LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_STATEMENT = re.compile(r"^--\s*name:\s*(\S+)\s*$")


def modules() -> dict[str, str]:
    found = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    assert found, f"no modules under {PACKAGE}"
    return found


def long_modules(name: str, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{name}: {lines} lines, at most {MAX_MODULE_LINES}"] if lines > MAX_MODULE_LINES else []


def long_functions(name: str, source: str) -> list[str]:
    return [
        f"{name}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def forbidden_code(name: str, source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                used = {alias.name.partition(".")[0] for alias in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=str(module), names=names):
                used = {module.partition(".")[0]} & FORBIDDEN_MODULES
                used |= {f"{module}.{alias.name}" for alias in names} & FORBIDDEN_CALLS
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                used = {ast.unparse(function)} & FORBIDDEN_CALLS
            case _:
                continue
        found += [f"{name}:{node.lineno}: {word}" for word in sorted(used)]
    return found


def vague_names(name: str, source: str) -> list[str]:
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return [
        f"{name}: {word}"
        for word in [Path(name).stem, *classes]
        if {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)} & FORBIDDEN_WORDS
    ]


def leftovers(name: str, source: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(source.splitlines(), start=1)
        if _LEFTOVER.search(line)
    ]


def statement_names(source: str) -> Counter[str]:
    return Counter(found[1] for line in source.splitlines() if (found := _STATEMENT.match(line)))


def unexplained_statements(name: str, source: str) -> list[str]:
    """Statements without a comment directly above or below their `-- name:` line."""
    lines = source.splitlines()
    found = []
    for index, line in enumerate(lines):
        if statement := _STATEMENT.match(line):
            above = lines[index - 1] if index else ""
            below = lines[index + 1] if index + 1 < len(lines) else ""
            if not any(re.match(r"--\s*\w", near) and not _STATEMENT.match(near) for near in (above, below)):
                found.append(f"{name}:{index + 1}: {statement[1]}")
    return found


def undocumented(name: str, value: object) -> list[str]:
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return []  # a constant or an alias has no docstring of its own
    # vars, not getdoc: an inherited docstring describes the parent. A bare dataclass has its signature there.
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return [name] if not own or own.startswith(f"{name}(") else []


def dropped_flows(sources: dict[str, str]) -> list[str]:
    """Calls of functions that return a `Flow` whose flow nobody enters: without `yield from` such a step does nothing.

    A flow may be yielded from, returned, or handed to what drives it, also by way of a variable.
    """
    trees = {name: ast.parse(source) for name, source in sources.items()}
    own = {
        name: {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _returns_flow(node)}
        for name, tree in trees.items()
    }
    moves = {
        node.name
        for name, tree in trees.items()
        if name.startswith("stores/moves/")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _returns_flow(node)
    }
    found = []
    for name, tree in trees.items():
        flows = set(own[name])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                there = own.get(node.module.removeprefix("onceward.").replace(".", "/") + ".py", set())
                flows |= {alias.asname or alias.name for alias in node.names if alias.name in there}
        found += [f"{name}:{line}" for line in _dropped(tree, flows, moves)]
    return found


def _returns_flow(function: ast.FunctionDef) -> bool:
    return function.returns is not None and ast.unparse(function.returns).startswith("Flow[")


def _dropped(tree: ast.Module, flows: set[str], moves: set[str]) -> Iterator[int]:
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {
        id(scope): {one.name for one in scope.body if isinstance(one, ast.FunctionDef) and _returns_flow(one)}
        for scope in scopes
    }
    handed = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _enters(above[node], node)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(id=called):
                is_flow = called in flows
            case ast.Attribute(value=ast.Name(id="self"), attr=called):
                inside: ast.AST | None = call
                while inside is not None and not isinstance(inside, ast.ClassDef):
                    inside = above.get(inside)
                is_flow = inside is not None and called in methods[id(inside)]
            case ast.Attribute(value=ast.Attribute(value=ast.Attribute(attr="moves")), attr=called):
                is_flow = called in moves
            case _:
                is_flow = False
        over: ast.AST = above[call]
        flow: ast.AST = call
        while isinstance(over, ast.IfExp) and over.test is not flow:
            over, flow = above[over], over
        kept = isinstance(over, ast.Assign) and isinstance(over.targets[0], ast.Name) and over.targets[0].id in handed
        if is_flow and not kept and not _enters(over, flow):
            yield call.lineno


def _enters(over: ast.AST, flow: ast.AST) -> bool:
    return isinstance(over, ast.YieldFrom | ast.Return | ast.Lambda) or (
        isinstance(over, ast.Call) and flow in over.args
    )


AT_THE_ROOT = {
    "__init__",
    "__main__",
    "deferred",
    "errors",
    "flow",
    "inbox",
    "message",
    "registry",
    "retry",
    "router",
    "settings",
}
"""What users and every room import; everything else has a room."""
MAX_MEMBERS = 40


def nothing(violations: Iterable[str]) -> None:
    found = sorted(violations)
    assert not found, "\n" + "\n".join(found)


def test_each_migration_is_one_of_djangos_too() -> None:
    """So that `manage.py migrate` makes what is new: a module that is as the one before it."""
    files = (STATEMENTS / "migrations").glob("*.sqlite.sql")
    wanted = {file.name.removesuffix(".sqlite.sql") for file in files}
    there = {file.stem for file in (PACKAGE / "integrations" / "django" / "migrations").glob("0*.py")}
    assert there == wanted, "copy the last module in integrations/django/migrations to the new name"


def test_modules_fit_in_the_head() -> None:
    nothing(each for name, source in modules().items() for each in long_modules(name, source))
    assert long_modules("long.py", "\n" * (MAX_MODULE_LINES + 1)) != []


def test_functions_fit_on_a_screen() -> None:
    nothing(each for name, source in modules().items() for each in long_functions(name, source))
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert long_functions("long.py", f"class A:\n  async def long(self):\n{body}") != []


def test_nothing_runs_what_a_message_says() -> None:
    nothing(each for name, source in modules().items() for each in forbidden_code(name, source))
    for bad in (
        "import pickle",
        "import os, marshal as m",
        "def f():\n    from shelve import open",
        "eval('1')",
        "print(exec)\nexec('1')",
        "__import__('os')",
        "import yaml\nyaml.load(text)",
        "from yaml import load",
    ):
        assert forbidden_code("bad.py", bad) != [], bad
    assert forbidden_code("good.py", "import ast\nast.literal_eval('1')\ncursor.execute('x')\nre.compile('y')") == []


def test_names_say_what_a_thing_is() -> None:
    nothing(each for name, source in modules().items() for each in vague_names(name, source))
    for bad in ("class StoreManager: ...", "class BaseStore: ...", "class _SQLHelper: ..."):
        assert vague_names("good.py", bad) != [], bad
    assert vague_names("stores/utils.py", "") != []
    assert vague_names("database.py", "class Database: ...") == []


def test_nothing_is_left_for_later() -> None:
    nothing(each for name, source in modules().items() for each in leftovers(name, source))
    assert leftovers("late.py", "x = 1  # TODO: two") != []


def test_every_dialect_has_the_same_statements_each_once_and_explained() -> None:
    dialects = {path.name: path.read_text() for path in sorted(STATEMENTS.glob("*.sql"))}
    assert len(dialects) > 1, f"expected one .sql file per dialect in {STATEMENTS}"
    names = {dialect: statement_names(source) for dialect, source in dialects.items()}
    everywhere = set().union(*names.values())
    assert everywhere
    shared = set(names.pop("portable.sql"))
    nothing(f"{dialect}: no {name}" for dialect, found in names.items() for name in everywhere - shared - set(found))
    for dialect, source in dialects.items():
        nothing(f"{dialect}: {name} twice" for name, times in statement_names(source).items() if times > 1)
    nothing(each for dialect, source in dialects.items() for each in unexplained_statements(dialect, source))


def test_the_statement_rules_see_what_they_should() -> None:
    explained = (
        "-- name: claim\n-- Guard: not claimed yet.\nSELECT 1;\n\n-- Guard: token.\n-- name: finish\nSELECT 2;\n"
    )
    assert statement_names(explained) == {"claim": 1, "finish": 1}
    assert unexplained_statements("x.sql", explained) == []
    assert unexplained_statements("x.sql", "-- name: claim\nSELECT 1;\n-- name: finish\n--\nSELECT 2;") == [
        "x.sql:1: claim",
        "x.sql:3: finish",
    ]


def test_every_public_name_is_documented() -> None:
    onceward = importlib.import_module("onceward")
    assert onceward.__all__
    nothing(each for name in onceward.__all__ for each in undocumented(name, getattr(onceward, name)))
    assert undocumented("silent", lambda: None) == ["silent"]
    assert undocumented("Heir", type("Heir", (Counter,), {})) == ["Heir"]


def test_every_module_has_its_room() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == AT_THE_ROOT


def test_the_inbox_keeps_what_a_service_uses() -> None:
    inbox = importlib.import_module("onceward").Inbox("sqlite://")
    members = [name for name in dir(inbox) if not name.startswith("_")]
    assert len(members) <= MAX_MEMBERS, (
        "what operators use belongs to inbox.admin, what keeps tables to inbox.retention"
    )


def test_every_step_is_entered() -> None:
    nothing(dropped_flows(modules()))
    step = "def step() -> Flow[int]:\n    yield\n\n"
    move = "class CatalogMoves:\n    def load(self) -> Flow[int]: ...\n"
    for bad in (
        f"{step}def f():\n    step()",
        f"{step}def f():\n    if step():\n        pass",
        f"{step}def f():\n    value = step()\n    print(value + 1)",
        "from onceward.steps.a import step as other\ndef f():\n    other()",
        "class A:\n    def flow(self) -> Flow[None]: ...\n    def f(self):\n        self.flow()",
        "def f(context):\n    context.moves.catalog.load()",
    ):
        assert dropped_flows({"steps/a.py": step, "stores/moves/catalog.py": move, "b.py": bad}), bad
    good = f"{step}def f():\n    flow = step()\n    run_sync(flow, 1)\n    yield from step()\n    return step()"
    assert dropped_flows({"b.py": good}) == []
