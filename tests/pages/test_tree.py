"""The tree in docs/architecture.md is the package as it is."""

from __future__ import annotations

from tests import tree
from tests.hops import ARCHITECTURE


def test_the_architecture_is_the_tree_as_it_is() -> None:
    text = ARCHITECTURE.read_text()
    assert text == tree.renewed(text), "a module has come or gone: run `make hops`"
