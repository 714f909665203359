"""`make faults`: every contender through the same messages and the same faults, and a table of what came of it.

make faults                                   # all of it: writes faults/report.json and docs/faults.md
make faults QUICK=1                           # a small one, which writes nothing
make faults CONTENDER=celery MESSAGES=600     # those with this in their names, which writes nothing
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from faults import fleet, lineup, page, report
from faults.lineup import Contender
from faults.plan import FULL, QUICK, Scale

SEED = 70
LONGEST_SECONDS = 1500


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    options = _options(arguments)
    scale = QUICK if options.quick else FULL
    scale = replace(scale, messages=options.messages or scale.messages)
    contenders = lineup.named(options.contender)
    if not contenders:
        print(f"no contender has {options.contender!r} in its name: {', '.join(one.name for one in lineup.ALL)}")
        return 2
    found = report.begun(options.seed, asdict(scale), options.at_once)
    with ThreadPoolExecutor(options.at_once) as pool:
        for result in pool.map(lambda one: _trial(one, options.seed, scale, options.output), contenders):
            found["results"].append(result)
            print(page.line(result), flush=True)
    whole = not options.quick and not options.contender and not options.messages
    if whole or options.record:
        _record(found, part=bool(options.contender))
    print(report.last_line(found))
    return 0 if report.holds(found) or not any(one.ours for one in contenders) else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, help="how many payments (2000, with --quick 200)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--contender", default="", help="only those with this in their names")
    parser.add_argument("--quick", action="store_true", help="few messages and few faults")
    parser.add_argument("--at-once", type=int, default=1, help="how many contenders run side by side")
    parser.add_argument("--record", action="store_true", help="write report and page, also of a part or a smaller run")
    parser.add_argument("--output", type=Path, help="a folder for what the processes of each contender print")
    return parser.parse_args(arguments)


def _trial(contender: Contender, seed: int, scale: Scale, output: Path | None) -> dict[str, Any]:
    """One contender, in a process of its own: what it leaves behind goes with it."""
    if contender.packages and not fleet.PEERS.exists():
        return {"contender": contender.name, "error": "not installed: make faults installs it"}
    print(f"{time.strftime('%H:%M:%S')} {contender.name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "faults.trial", contender.name, str(seed), json.dumps(asdict(scale))]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        command.append(str(output / contender.name.replace(" ", "-")))
    done = subprocess.run(
        command, cwd=fleet.ROOT, stdout=subprocess.PIPE, text=True, timeout=LONGEST_SECONDS, check=False
    )
    if done.returncode:
        return {"contender": contender.name, "error": f"its trial ended with {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _record(found: dict[str, Any], *, part: bool) -> None:
    """Write report and page; a part of the contenders takes its place among the others."""
    whole = report.merged(report.read(), found) if part and report.REPORT.exists() else found
    report.write(whole)
    page.PAGE.write_text(page.page(whole), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
