"""Every link of the documentation leads somewhere, and the site has a place for every page (R69)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from proof import reference
from proof.sizing import SIZING_PAGE, with_tables
from tests.pages.reader import ROOT

DOCS = ROOT / "docs"
PAGES = {path: path.read_text() for path in DOCS.rglob("*.md") if DOCS / "reference" not in path.parents}
OUTSIDE = {
    ROOT / name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
}
_CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@cache
def known() -> dict[Path, str]:
    """Every page, also those that are made of the code."""
    return PAGES | OUTSIDE | {DOCS / "reference" / name: text for name, text in reference.made().items()}


def anchors(text: str) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    words = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in _HEADING.findall(_CODE.sub("", text))
    )
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


def broken(path: Path, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for target, anchor in _LINK.findall(_CODE.sub("", text)):
        there = Path(os.path.normpath(path.parent / target)) if target else path
        if there != path and there not in known() and not there.exists():
            yield target
        elif anchor and there.suffix == ".md" and anchor[1:] not in anchors(text if there == path else known()[there]):
            yield f"{target}{anchor}"


def test_links_lead_somewhere() -> None:
    found = {str(path.relative_to(ROOT)): list(broken(path, text)) for path, text in known().items()}
    assert {name: targets for name, targets in found.items() if targets} == {}


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](nothing.md) [b](glossary.md#nouns) [c](glossary.md#nothing) [d](#here)\n\n## There\n"
    assert list(broken(DOCS / "some.md", text)) == ["nothing.md", "glossary.md#nothing", "#here"]


def test_every_page_has_a_place_in_the_site() -> None:
    """`make docs` refuses one without; this says so at once."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    names = {str(path.relative_to(DOCS).with_suffix("")) for path in known() if DOCS in path.parents} - {"index"}
    assert [name for name in sorted(names) if not any(fnmatch(name, one) for one in listed)] == []
    assert [one for one in listed if not one.endswith("*") and one not in names] == []


def test_the_tables_of_sizes_are_made_from_the_record() -> None:
    """`make sizing` measures and writes them again."""
    page = SIZING_PAGE.read_text()
    assert page == with_tables(page)
