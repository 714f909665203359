"""`onceward redrive` and `onceward discard`: decide about messages, by number or by what they have in common.

Invariant: what is changed is what was shown. A bulk command collects the messages first, shows what they are, asks, and
then acts on exactly these; each change is guarded and written to the audit by the inbox itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click
from rich.progress import track

from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import console, count, examples, print_json, print_table, say
from onceward.cli.target import Target, as_json, numbers, on_target
from onceward.inbox import Inbox
from onceward.report import Row

PAGE = 500
SHOWN_KINDS = 10
LONG_WORK = 50

Change = Callable[[Inbox, int, str], int]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: these numbers, or the dead ones that match."""

    seqs: list[int]
    filters: dict[str, str | None]
    everything: bool

    @property
    def bulk(self) -> bool:
        """Whether messages are chosen by what they have in common."""
        return self.everything or any(self.filters.values())


def _selecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that both commands share."""
    for option in (
        as_json,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit."),
        click.option("--all", "everything", is_flag=True, help="All dead messages."),
        click.option("--source", metavar="NAME", help="The dead messages from this source."),
        click.option("--key", metavar="KEY", help="The dead messages with this ordering key."),
        click.option("--type", "type", metavar="TYPE", help="The dead messages of this type."),
        on_target(rest="[SEQ]..."),
    ):
        function = option(function)
    return function


@click.command(
    short_help="Run dead messages again, with a new budget.",
    epilog=examples(
        'onceward redrive shop:inbox 17 18 --reason "the bank is back"',
        'onceward redrive shop:inbox --type order.paid --reason "fixed in 1.4.2"',
        'onceward redrive --store sqlite:///shop.db --all --reason "fixed" --yes',
    ),
)
@_selecting
def redrive(target: Target, words: list[str], **options: Any) -> None:
    """Give dead messages a new budget: they run again, and their history stays.

    By number, or in bulk by --type, --key, --source or --all; bulk shows what it found and asks first. Exit code 1
    when a message named by number is not dead.
    """
    _decide("redrive", lambda inbox, seq, reason: inbox.redrive(seq, reason=reason), target, words, options)


@click.command(
    short_help="Take messages out for good.",
    epilog=examples(
        'onceward discard shop:inbox 17 --reason "test order"',
        'onceward discard shop:inbox --source old-shop --reason "closed in May" --yes',
    ),
)
@_selecting
def discard(target: Target, words: list[str], **options: Any) -> None:
    """Take messages out for good: they never run, and later copies of them are duplicates.

    By number (any message that is neither finished nor running), or the dead ones in bulk by --type, --key, --source or
    --all; bulk shows what it found and asks first. Exit code 1 when a message named by number could not be discarded.
    """
    _decide("discard", lambda inbox, seq, reason: inbox.discard(seq, reason=reason), target, words, options)


def _decide(verb: str, change: Change, target: Target, words: list[str], options: dict[str, Any]) -> None:
    filters = {name: options[name] for name in ("type", "key", "source")}
    chosen = Selection(numbers(words, "SEQ"), filters, options["everything"])
    if bool(chosen.seqs) == chosen.bulk or (chosen.everything and any(filters.values())):
        raise Failure(f"say what to {verb}: numbers, or --type/--key/--source, or --all", WRONG_USAGE)
    if chosen.bulk and not options["yes"] and not _can_ask(as_json=options["as_json"]):
        raise Failure("nobody can be asked here; look with `onceward list --status dead`, then add --yes", WRONG_USAGE)
    with target.open() as inbox:
        seqs = _preview(inbox, verb, chosen, options) if chosen.bulk else chosen.seqs
        changed = {seq for seq in _progress(seqs, verb) if change(inbox, seq, options["reason"])}
        unchanged = [seq for seq in seqs if seq not in changed]
        _report(inbox, verb, len(changed), unchanged, as_json=options["as_json"])
    if unchanged and not chosen.bulk:
        raise SystemExit(NOT_SO)


def _can_ask(*, as_json: bool) -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not as_json


def _preview(inbox: Inbox, verb: str, chosen: Selection, options: dict[str, Any]) -> list[int]:
    """Collect the numbers, show what they are, and ask."""
    kinds: Counter[tuple[str, str, str]] = Counter()
    seqs: list[int] = []
    for row in _dead(inbox, chosen.filters):
        seqs.append(row.seq)
        kinds[row.type, row.source, row.consumer] += 1
    if not options["as_json"] and kinds:
        rows = [(f"{number:,}", *kind) for kind, number in kinds.most_common(SHOWN_KINDS)]
        print_table(("messages", "type", "source", "consumer"), rows, right=("messages",))
        if len(kinds) > SHOWN_KINDS:
            say(f"and {len(kinds) - SHOWN_KINDS} more kinds")
    if seqs and not options["yes"]:
        click.confirm(f"{verb} {count(len(seqs), 'dead message')}?", abort=True)
    return sorted(seqs)


def _dead(inbox: Inbox, filters: dict[str, str | None]) -> Iterable[Row]:
    before: int | None = None
    while page := inbox.messages(status="dead", before=before, limit=PAGE, **filters):
        yield from page
        before = page[-1].seq


def _progress(seqs: list[int], verb: str) -> Iterable[int]:
    """The numbers, with a bar in a terminal when there are many."""
    out = console(stderr=True)
    if len(seqs) < LONG_WORK or not out.is_terminal:
        return seqs
    return track(seqs, description=verb, console=out, transient=True)


def _report(inbox: Inbox, verb: str, changed: int, unchanged: list[int], *, as_json: bool) -> None:
    if as_json:
        print_json({"changed": changed, "unchanged": unchanged})
        return
    past = {"redrive": "redriven", "discard": "discarded"}[verb]
    say(f"{past}: {count(changed, 'message')}" if changed or unchanged else "no dead messages match")
    for seq in unchanged[:SHOWN_KINDS]:
        story = inbox.message(seq)
        say(f"message {seq} was left alone: " + (f"it is {story.status}" if story else "there is no such message"))
    if len(unchanged) > SHOWN_KINDS:
        say(f"and {len(unchanged) - SHOWN_KINDS} more were left alone")
