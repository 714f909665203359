"""`python -m mutants`: break the code in one way after another; the simulation or a test must notice each."""

from __future__ import annotations

import argparse
import logging
import sys
from itertools import chain

from mutants import ALL
from mutants.player import play
from mutants.verdict import tell
from simulation import mutants as simulated

ENOUGH = 150


def main(arguments: list[str] | None = None) -> int:
    """Play both lists, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", default="", help="write the figures to this file")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in ALL if options.only in mutant.name]
    verdicts = chain(simulated.play(options.only, processes=options.processes), play(chosen, options.processes))
    return tell(verdicts, enough=1 if options.only else ENOUGH, file=options.json)


if __name__ == "__main__":
    logging.getLogger("onceward").addHandler(logging.NullHandler())  # messages fail by the thousand here, on purpose
    sys.exit(main())
