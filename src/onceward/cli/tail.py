"""`onceward tail`: what happens, line by line, as it happens.

Invariant: each look has an end that the size of the inbox does not move: the newest messages and the newest lines of
the audit. What happens to an older message is seen where it fails or dies, and else not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from onceward.admin.admin import Admin
from onceward.admin.messages import Row
from onceward.cli.output import STYLES, console, print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, visible

NEWEST = 500
"""So many of the newest messages are looked at each time;"""
TROUBLED = 100
"""and of those that fail, so many."""
FIRST = 20
"""So many lines of before are shown at the beginning."""


@dataclass(frozen=True, slots=True)
class Line:
    """Something that has happened."""

    at: datetime
    what: str
    """A status of a message, or what an operator did."""
    seq: int
    type: str = ""
    source: str = ""
    id: str = ""
    more: str = ""


@dataclass(slots=True)
class Follower:
    """Looks again and again, and returns what is new since it looked last."""

    admin: Admin
    filters: dict[str, Any]
    failures: bool = False
    """Only what failed or died."""
    _seen: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The status and the attempts of messages, as they were last."""
    _line: int | None = None
    """The newest line of the audit that was seen."""

    def look(self) -> list[Line]:
        """What is new, the first first; at the first look the newest messages as they are."""
        first = self._line is None
        lines = [*self._messages(), *self._audit()]
        lines.sort(key=lambda line: (line.at, line.seq))
        return lines[-FIRST:] if first else lines

    def _messages(self) -> Iterator[Line]:
        rows: dict[int, Row] = {}
        for status, limit in ((None, NEWEST), ("retrying", TROUBLED), ("dead", TROUBLED)):
            found = self.admin.messages(status=status, limit=limit, **self.filters)
            rows |= {row.seq: row for row in found}
        now = datetime.now(UTC)
        for row in rows.values():
            state, before = (row.status, row.attempts + row.crashes), self._seen.get(row.seq)
            if state == before or (before is None and self._line is not None and row.seq < self._lowest(rows)):
                continue
            if not self.failures or row.status in ("retrying", "dead"):
                at = row.received_at if before is None else now
                error = (row.error or "").partition("\n")[0] if row.status in ("retrying", "dead") else ""
                yield Line(at, row.status, row.seq, row.type, row.source, row.id, error)
        self._seen = {seq: (row.status, row.attempts + row.crashes) for seq, row in rows.items()}

    def _lowest(self, rows: dict[int, Row]) -> int:
        """The lowest number that was seen before: what is lower and not known has only come into sight."""
        return min(self._seen, default=min(rows))

    def _audit(self) -> Iterator[Line]:
        found = self.admin.audit(limit=FIRST if self._line is None else NEWEST)
        for line in found:
            if not self.failures and (self._line is None or line.id > self._line):
                yield Line(line.at, line.action, line.seq, more=f"by {line.actor}: {line.reason}")
        self._line = max((line.id for line in found), default=self._line or 0)


@click.command(
    epilog=examples(
        "onceward tail shop:inbox",
        "onceward tail shop:inbox --failures --type order.paid",
        "onceward tail shop:inbox --once --json | jq .what",
    ),
)
@on_target()
@click.option("--type", "type", metavar="TYPE", help="Only messages of this type.")
@click.option("--source", metavar="NAME", help="Only messages from this source.")
@click.option("--outgoing", is_flag=True, help="Messages of the outbox instead of those that came in.")
@click.option("--failures", is_flag=True, help="Only what fails or dies.")
@click.option("--once", is_flag=True, help="Show the newest lines, and stop.")
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="[default: 1]")
@as_json
def tail(  # noqa: PLR0913 - the options of the command
    target: Target, *, failures: bool, once: bool, every: float, as_json: bool, outgoing: bool, **named: Any
) -> None:
    """Follow what happens until Ctrl-C: messages that come, run, fail and finish, and what people do.

    It looks at the newest 500 messages, and at what fails, once a second; of several changes in between it shows the
    last. With --json each line is an object.
    """
    filters = {name: value for name, value in named.items() if value} | ({"outgoing": True} if outgoing else {})
    with target.open() as inbox, suppress(KeyboardInterrupt):
        follower = Follower(inbox.admin, filters, failures=failures)
        while True:
            for line in follower.look():
                _print(line, as_json=as_json)
            if once:
                return
            time.sleep(every)


def _print(line: Line, *, as_json: bool) -> None:
    if as_json:
        print_json(line, indent=False)
        return
    about = (
        f"{line.type} #{line.seq} ({line.id} from {line.source})" if line.type else f"#{line.seq}" if line.seq else ""
    )
    when = f"{line.at.astimezone():%H:%M:%S}  "
    text = Text.assemble(
        (when, "dim"),
        (f"{visible(line.what):10}", STYLES.get(line.what, "")),
        "  ",
        visible(f"{about}  {line.more}".strip()),
    )
    console().print(text, soft_wrap=True)
