"""Every public name, setting, command and option is in a page that users read (R69)."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from typing import TYPE_CHECKING

import click
import pytest
from django.core.exceptions import ImproperlyConfigured

import onceward
from onceward import Settings, errors
from onceward.cli.app import COMMANDS, application
from proof import reference
from tests.pages.reader import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

INSIDE = re.compile(
    r"onceward\.(steps|stores|runtime|flow|domain|deferred|cli|brokers|polls|blobs|demo|retention|integrations\.django\.)\b"
)
"""Rooms that programs do not import from, but for what `onceward` itself gives."""


@pytest.fixture(scope="module")
def pages() -> str:
    """What users read: the pages, and those that are made of the code."""
    paths = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts)]
    written = [path.read_text() for path in paths if not {"reference", ".venv"} & set(path.parts)]
    return "\n".join([*written, *reference.made().values()])


def public() -> Iterator[str]:
    """The names in every `__all__` of a room that programs import from."""
    for module in pkgutil.walk_packages(onceward.__path__, "onceward."):
        if not INSIDE.match(module.name) and not module.name.endswith("__main__"):
            try:
                yield from getattr(importlib.import_module(module.name), "__all__", ())
            except ImproperlyConfigured:
                assert "django" in module.name  # Django imports it, in a project
            except ImportError as error:  # of a package that this environment does not have
                assert not str(error.name).startswith("onceward"), module.name  # noqa: PT017 - not what is tested


def test_every_public_name_is_in_a_page(pages: str) -> None:
    names = {*onceward.__all__, *public()}
    names |= {name for name in dir(onceward.Inbox) if not name.startswith("_")}
    names |= {
        name for name, thing in vars(errors).items() if isinstance(thing, type) and thing.__module__ == errors.__name__
    }
    missing = {name for name in names if not re.search(rf"\b{name}\b", pages)}
    assert not missing, "add its module to proof/reference.py, or write about it in a page"


def test_every_setting_and_every_option_is_in_a_page(pages: str) -> None:
    context = click.Context(application)
    wanted = {field.name for field in dataclasses.fields(Settings)}
    for name in COMMANDS:
        command = application.get_command(context, name)
        assert command is not None
        wanted |= {name} | {
            option for one in command.params if not getattr(one, "hidden", False) for option in one.opts
        }
    assert not {name for name in wanted if name not in pages}


def test_examples_in_docstrings_become_code() -> None:
    made = reference.prose("Words.\n\n>>> f(1)\n2\n\nMore.")
    assert made == "Words.\n\n```pycon\n>>> f(1)\n2\n```\n\n\nMore."
