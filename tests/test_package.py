"""What is published (R69): `make package` builds and installs it; here is what can be said without that."""

from __future__ import annotations

import tomllib

import onceward
from proof.package import MADE_OF_OTHERS, MODULES, ROOT, extras


def test_every_extra_is_imported_by_make_package() -> None:
    """A new extra gets its line in proof/package.py."""
    assert MODULES.keys() | MADE_OF_OTHERS == extras().keys()


def test_everything_has_everything_and_no_package_comes_without_an_extra() -> None:
    (everything,) = extras()["all"]
    assert set(everything.removeprefix("onceward[").removesuffix("]").split(",")) == extras().keys() - MADE_OF_OTHERS
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] == []


def test_the_version_is_the_same_everywhere() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == onceward.__version__


def test_ci_tries_the_package_and_the_demo() -> None:
    steps = (ROOT / ".ci" / "run").read_text()
    assert "make package QUICK=1" in steps
    assert steps.rstrip().endswith("make demo </dev/null")
