"""Many requests that nobody should take: `make fuzz`.

    python -m tests.webhooks [--requests N] [--forgeries N] [--seed S] [--json FILE]

Strangers' requests go to a real server with every kind of webhook, forgeries to the verifier of each kind. It fails at
a request that is not refused, and where the inbox has a row after all of them.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from onceward import Inbox
from proof import report
from tests.webhooks.conftest import endpoints, served, traces
from tests.webhooks.fuzz import refuse_forgers, refuse_strangers
from tests.webhooks.senders import SENDERS


def main(words: Sequence[str]) -> int:
    """Send them all; the answer is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.webhooks", description="Requests that nobody should take.")
    parser.add_argument("--requests", type=int, default=100_000, help="of strangers, to a server")
    parser.add_argument("--forgeries", type=int, default=100_000, help="for each kind of webhook, to its verifier")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--json", default="", help="where the figures go")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, Inbox(f"sqlite:///{Path(folder, 'inbox.db')}") as inbox:
        inbox.migrate()
        with served(inbox.webhooks(endpoints())) as caller:
            answers = refuse_strangers(caller, chosen.requests, chosen.seed)
        rows = sum(traces(inbox).values())
    sys.stdout.write(f"seed {chosen.seed}: {sum(answers.values()):,} requests of strangers refused, {rows} rows\n")
    accepted = {}
    for sender in SENDERS:
        accepted[sender.name] = refuse_forgers(sender, chosen.forgeries, chosen.seed)
        sys.stdout.write(f"{sender.name}: {chosen.forgeries:,} forgeries, {accepted[sender.name]} taken\n")
    figures = {
        "seed": chosen.seed,
        "requests": sum(answers.values()),
        "answers": dict(sorted(answers.items())),
        "forgeries": {sender.name: chosen.forgeries for sender in SENDERS},
        "violations": rows + sum(accepted.values()),
    }
    if chosen.json:
        report.write(chosen.json, {"run": "fuzz", **figures}, ["sqlite"])
    return int(figures["violations"] != 0)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the server has a line for each request that is none
    sys.exit(main(sys.argv[1:]))
