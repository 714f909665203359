"""Which inbox a command is about: `MODULE:ATTR`, an Inbox in a program, or `--store URL`, a database alone.

Without either: `ONCEWARD_INBOX`, then `ONCEWARD_STORE`, then `[tool.onceward] inbox` of the nearest pyproject.toml.

Invariant: whatever is wrong with it is one sentence with the next step, before anything else happens.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.launch import Launch
from onceward.cli.text import say
from onceward.errors import OncewardError
from onceward.inbox import Inbox
from onceward.stores.migrate import masked

INBOX, STORE = "ONCEWARD_INBOX", "ONCEWARD_STORE"
PROJECT = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Target:
    """The inbox as the command line names it, not opened yet."""

    program: str | None
    store: str | None = None
    prefix: str | None = None
    service: str | None = None

    @classmethod
    def given(cls, program: str | None, store: str | None, prefix: str | None, service: str | None) -> Target:
        """What the words of a command line name; without any, the inbox that the environment or the project names."""
        if not (program or store):
            program = os.environ.get(INBOX) or Launch.current().inbox()
            store = os.environ.get(STORE) if program is None else None
            program = program or (None if store else _of_project())
        return cls(program, store, prefix, service)

    @contextmanager
    def open(self) -> Iterator[Inbox]:
        """The inbox, closed at the end."""
        inbox = self._inbox()
        try:
            yield inbox
        finally:
            inbox.close()

    @property
    def words(self) -> str:
        """The words that name it in the command to run next."""
        if self.program:
            return self.program
        options = {"--store": masked(self.store or ""), "--prefix": self.prefix, "--service": self.service}
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items() if value)

    @contextmanager
    def program_inbox(self) -> Iterator[tuple[str, Inbox]]:
        """MODULE:ATTR and its inbox, closed at the end; a database alone has no handlers to run."""
        if self.program is None:
            raise Failure(
                "which program? Give MODULE:ATTR (for example shop:inbox); or set ONCEWARD_INBOX=shop:inbox; "
                f'or add to {PROJECT}: [tool.onceward] inbox = "shop:inbox"',
                WRONG_USAGE,
            )
        with self.open() as inbox:
            yield self.program, inbox

    def _inbox(self) -> Inbox:
        if self.program and self.store:
            raise Failure("give MODULE:ATTR or --store URL, not both", WRONG_USAGE)
        if self.program and (self.prefix or self.service):
            raise Failure(f"--prefix and --service go with --store; {self.program} has its own", WRONG_USAGE)
        if self.program:
            return load(self.program)
        if self.store:
            inbox = Inbox(self.store, prefix=self.prefix or "onceward_", service=self.service or "default")
            inbox.context.program = self.words
            return inbox
        raise Failure(
            "which inbox? Give MODULE:ATTR (for example shop:inbox) or --store URL; or set ONCEWARD_INBOX=shop:inbox; "
            f'or add to {PROJECT}: [tool.onceward] inbox = "shop:inbox"',
            WRONG_USAGE,
        )


def _of_project() -> str | None:
    """The inbox that the nearest pyproject.toml names; its folder is where the module is."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / PROJECT
        if not file.is_file():
            continue
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("onceward", {}).get("inbox")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Failure(f"{file} is not valid TOML: {error}", WRONG_USAGE) from None
        if found is None:
            return None
        if not isinstance(found, str):
            raise Failure(f'{file}: [tool.onceward] inbox must be a text such as "shop:inbox"', WRONG_USAGE)
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        return found
    return None


def load(program: str) -> Inbox:
    """The Inbox at `MODULE:ATTR`, with the current folder importable."""
    module_name, _, path = program.partition(":")
    if "//" in path:
        raise Failure(f"{program} is an address, not MODULE:ATTR; write --store {program}", WRONG_USAGE)
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise Failure(
            f"{program!r} is not of the form MODULE:ATTR; for `inbox` in shop.py write shop:inbox", WRONG_USAGE
        )
    module = _import(module_name)
    try:
        found = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        raise Failure(f"module {module_name} has no {path!r}; {_inboxes(module)}", WRONG_USAGE) from None
    if not isinstance(found, Inbox):
        raise Failure(f"{program} is {type(found).__name__}, not an onceward Inbox; {_inboxes(module)}", WRONG_USAGE)
    found.context.program = program
    return found


def _import(name: str) -> Any:
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except OncewardError as error:
        raise Failure(f"importing {name} failed: {error}", WRONG_USAGE) from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise Failure(
                f"there is no module {missing!r} in {folder} or among the installed packages; "
                "run the command in the folder that has it, or set PYTHONPATH",
                WRONG_USAGE,
            ) from None
        # Somebody's own code failed: where it did is what they need to know.
        say(_own_traceback(error), error=True)
        raise Failure(f"importing {name} failed: {type(error).__name__}: {error}", WRONG_USAGE) from error


def _own_traceback(error: Exception) -> str:
    """The traceback without the steps of the import itself, which say nothing."""
    step = error.__traceback__
    while step and (step.tb_frame.f_code.co_filename == __file__ or "importlib" in step.tb_frame.f_code.co_filename):
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


def _inboxes(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Inbox)]
    return f"it has: {', '.join(f'{module.__name__}:{name}' for name in names)}" if names else "it has no Inbox"


def split(words: Sequence[str], *, several: bool) -> tuple[str | None, list[str]]:
    """The target among the words of a command line, and the rest of them."""
    if words and (not several or (":" in words[0] and not words[0].isdigit())):
        return words[0], list(words[1:])
    return None, list(words)


def on_target(*, rest: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command its target, and the `words` after it where `rest` names some."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("words", nargs=-1, metavar=f"[MODULE:ATTR] {rest}".strip())
        @click.option("--store", metavar="URL", help="The database, instead of a program.")
        @click.option("--prefix", metavar="NAME", help="The prefix of the tables, with --store. [default: onceward_]")
        @click.option("--service", metavar="NAME", help="The service's name, with --store. [default: default]")
        @functools.wraps(function)
        def command(
            words: Sequence[str], store: str | None, prefix: str | None, service: str | None, **options: Any
        ) -> Any:
            program, others = split(words, several=bool(rest))
            target = Target.given(program, store, prefix, service)
            if rest:
                return function(target, others, **options)
            if others:
                raise Failure(
                    f"unexpected: {' '.join(others)}; see: {click.get_current_context().command_path} --help",
                    WRONG_USAGE,
                )
            return function(target, **options)

        return command

    return decorate


def is_number(word: str) -> bool:
    """Whether a word is a sequence number: longer ones fit no database, and isdigit alone would accept other digits."""
    return word.isascii() and word.isdigit() and 0 < int(word) < 2**63


def numbers(words: Sequence[str], what: str) -> list[int]:
    """Words that must be numbers of messages or mismatches."""
    found = []
    for word in words:
        if not is_number(word):
            raise Failure(f"{what} must be a number, not {word!r}", WRONG_USAGE)
        found.append(int(word))
    return found


class Moment(click.ParamType[datetime]):
    """A time: ISO 8601 (in UTC unless it says otherwise), or so long ago: 90s, 15m, 6h, 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read it."""
        if isinstance(value, datetime):
            return value
        if found := re.fullmatch(r"([0-9]{1,6})([smhd])", value):
            return datetime.now(UTC) - timedelta(**{_SPANS[found[2]]: int(found[1])})
        try:
            read = datetime.fromisoformat(value)
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time (2026-11-15T12:00) nor so long ago (90s, 15m, 6h, 7d)", param, ctx)


_SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MOMENT = Moment()

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
