"""The pins install on every Python that the package says it runs on (E14)."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PLATFORMS = {"linux": "Linux", "darwin": "Darwin"}


def pinned(python: str, platform: str) -> dict[str, str]:
    """The version of every package for one environment; each may be there once, or pip installs nothing."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_system": PLATFORMS[platform],
        "os_name": "posix",
    }
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    wanted = [one for line in lines if (one := Requirement(line)).marker is None or one.marker.evaluate(environment)]
    twice = [name for name, times in Counter(one.name for one in wanted).items() if times > 1]
    assert not twice, f"pinned twice for Python {python}: {', '.join(twice)}"
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in wanted}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_is_pinned_once_within_what_is_asked_for(python: str, platform: str) -> None:
    pins = pinned(python, platform)
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    asked = [line for lines in extras.values() for line in lines if not line.startswith("onceward[")]
    for line in [*asked, *PROJECT["dependency-groups"]["dev"]]:
        one = Requirement(line)
        assert one.specifier.contains(pins[canonicalize_name(one.name)], prereleases=True), line


def test_the_classifiers_name_these_pythons() -> None:
    named = [
        line.rpartition(" ")[2]
        for line in PROJECT["project"]["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert named == PYTHONS
