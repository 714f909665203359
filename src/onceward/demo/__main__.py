"""`python -m onceward.demo`: the demo as it is, without any other package. `onceward demo` has options."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Play it in a temporary folder; returns the exit code."""
    sys.stdout.write("onceward demo: starting\n")
    sys.stdout.flush()
    from onceward.demo.screen import performed  # noqa: PLC0415 - the first line comes before everything is loaded
    from onceward.demo.show import Plan  # noqa: PLC0415 - the same

    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as folder:
        return 0 if performed(Plan(), Path(folder)).verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
