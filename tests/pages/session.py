"""Runs the Python blocks of a page one after the other, in one process: file names come in, what happened goes out.

Started as a program, in the folder of the page; it imports nothing of the tests.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path


def main() -> None:
    """Execute files until the input ends; the last line that is written about each is JSON."""
    channel, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, "")
    names: dict[str, object] = {"__name__": "page"}
    for line in sys.stdin:
        path = Path(line.strip())
        error = None
        try:
            exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)  # noqa: S102 - our own pages
        except BaseException:  # noqa: BLE001 - whatever it is, the test says so
            error = traceback.format_exc()
        channel.write(json.dumps(error) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
