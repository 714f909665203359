"""The command line: everything that operators and scripts do with an inbox. `main` is what `onceward` runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line, or print what it needs: the library itself works without these packages."""
    if not all(map(find_spec, NEEDED)):
        sys.stderr.write("the command line needs: pip install 'onceward[cli]'\n")
        sys.exit(2)
    from onceward.cli.app import application  # noqa: PLC0415 - its packages are an extra

    application(prog_name="onceward")
