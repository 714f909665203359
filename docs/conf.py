"""How Sphinx makes the site of these pages: `make docs`. They are Markdown, and read well on their own too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

project, copyright, author = "onceward", "onceward contributors", "onceward contributors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser"]
exclude_patterns = [".venv", "_build", "build"]
html_theme = "furo"
html_title = "onceward"
html_copy_source = False
myst_heading_anchors = 5
myst_enable_extensions = ["colon_fence"]
nitpicky = True

_LINK = re.compile(r"(!?)\[([^\]\[]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def inside(page: Path, text: str) -> str:
    """A page of the site: what is linked to and is not part of the site is named instead."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[3]))
        is_page = target.suffix == ".md" and target.is_file() and HERE in target.parents
        if is_page or found[1]:
            return found[0]
        if target.is_dir() and (target / "README.md").is_file() and HERE in target.parents:
            return f"[{found[2]}]({os.path.relpath(target / 'README.md', page.parent)})"
        if not target.exists():
            raise ValueError(f"{page}: {found[3]} is not there")
        return f"{found[2]} (`{os.path.relpath(target, HERE.parent)}`)"

    return _LINK.sub(link, text).replace("```mermaid", "```text")


def present(text: str) -> str:
    """The index without the places of pages that are not written yet."""
    lines = text.splitlines(keepends=True)
    named = {line.strip() for line in lines}

    def has_pages(line: str) -> bool:
        found = {str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob(f"{line.strip()}.md")}
        return bool(found - named)

    return "".join(line for line in lines if not line.rstrip().endswith("*") or has_pages(line))


def setup(app: Any) -> None:
    """Called by Sphinx."""

    def read(app: Any, name: str, content: list[str]) -> None:
        page = Path(app.env.doc2path(name))
        content[0] = inside(page, present(content[0]) if name == "index" else content[0])

    app.connect("source-read", read)
