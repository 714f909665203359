"""`onceward redrive`, `release` and `discard`: decide about messages, by number or by what they have in common.

Invariant: what is changed is what was shown. A bulk command collects the messages first, shows what they are, asks, and
then acts on exactly these; each change is guarded and written to the audit by the inbox itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.progress import track

from onceward.admin.messages import Row
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import console, print_json, print_table
from onceward.cli.target import MOMENT, Target, as_json, numbers, on_target
from onceward.cli.text import count, examples, say
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox

PAGE = 500
SHOWN = 10
LONG_WORK = 50

FILTERS = ("type", "key", "source", "fingerprint", "since", "until", "outgoing")
Change = Callable[[Inbox, int, str], int]
PAST = {"redrive": "redriven", "release": "released", "discard": "discarded"}


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for: these numbers, or the dead messages that match; and how to go about it."""

    verb: str
    seqs: list[int]
    filters: dict[str, Any]
    everything: bool
    reason: str
    yes: bool
    as_json: bool

    @property
    def bulk(self) -> bool:
        """Whether messages are chosen by what they have in common."""
        return self.everything or any(self.filters.values())


def _selecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that these commands share."""
    for option in (
        as_json,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit."),
        click.option("--all", "everything", is_flag=True, help="All dead messages."),
        click.option("--outgoing", is_flag=True, help="The dead messages of the outbox."),
        click.option("--until", type=MOMENT, help="The dead messages received before."),
        click.option("--since", type=MOMENT, help="The dead messages received since: 2026-11-15T12:00, or 6h ago."),
        click.option(
            "--error", "fingerprint", metavar="FINGERPRINT", help="Those that failed in this way; see explain."
        ),
        click.option("--source", metavar="NAME", help="The dead messages from this source."),
        click.option("--key", metavar="KEY", help="The dead messages with this ordering key."),
        click.option("--type", "type", metavar="TYPE", help="The dead messages of this type."),
        on_target(rest="[SEQ]..."),
    ):
        function = option(function)
    return function


@click.command(
    epilog=examples(
        'onceward redrive shop:inbox 17 18 --reason "the bank is back"',
        'onceward redrive shop:inbox --type order.paid --reason "fixed in 1.4.2"',
        'onceward redrive shop:inbox --error 4f1c22ab09de --since 6h --reason "fixed in 1.4.2"',
        'onceward redrive --store sqlite:///shop.db --all --reason "fixed" --yes',
    ),
)
@_selecting
@click.option("--out-of-order", is_flag=True, help="Also those whose key went on without them.")
def redrive(target: Target, words: list[str], *, out_of_order: bool, **options: Any) -> None:
    """Give dead messages a new budget: they run again, and their history stays.

    By number, or in bulk by filters (--type, --error, ...) or --all; bulk shows what it found and asks first. Exit
    code 1 when a message named by number was left alone, for example because it is not dead.
    """
    change: Change = lambda inbox, seq, reason: inbox.admin.redrive(seq, reason=reason, out_of_order=out_of_order)  # noqa: E731 - one use
    _decide("redrive", change, target, words, options)


@click.command(
    epilog=examples(
        'onceward release shop:inbox 17 --reason "order cancelled by phone"',
        'onceward release shop:inbox --key 4711 --reason "fixed by hand" --yes',
    ),
)
@_selecting
def release(target: Target, words: list[str], **options: Any) -> None:
    """Let the messages behind a dead one run: its key goes on without it, and it stays dead.

    By number, or in bulk by filters (--type, --error, ...) or --all; bulk shows what it found and asks first. Exit
    code 1 when a message named by number holds no key back.
    """
    _decide("release", lambda inbox, seq, reason: inbox.admin.unblock(seq, reason=reason), target, words, options)


@click.command(
    epilog=examples(
        'onceward discard shop:inbox 17 --reason "test order"',
        'onceward discard shop:inbox --source old-shop --reason "closed in May" --yes',
    ),
)
@_selecting
def discard(target: Target, words: list[str], **options: Any) -> None:
    """Take messages out for good: they never run, and later copies of them are duplicates.

    By number (any message that is neither finished nor running), or the dead ones in bulk by filters (--type,
    --error, ...) or --all; bulk shows what it found and asks first. Exit code 1 when a message named by number could
    not be discarded.
    """
    _decide("discard", lambda inbox, seq, reason: inbox.admin.discard(seq, reason=reason), target, words, options)


def _decide(verb: str, change: Change, target: Target, words: list[str], options: dict[str, Any]) -> None:
    filters = {name: options.pop(name) for name in FILTERS}
    request = Request(verb, numbers(words, "SEQ"), filters, **options)
    narrowed = any(value for name, value in filters.items() if name != "outgoing")
    if bool(request.seqs) == request.bulk or (request.everything and narrowed):
        raise Failure(
            f"say what to {verb}: numbers, or --type/--key/--source/--error/--since/--until, or --all", WRONG_USAGE
        )
    if request.bulk and not request.yes and not _can_ask(request):
        raise Failure("nobody can be asked here; look with `onceward list --status dead`, then add --yes", WRONG_USAGE)
    with target.open() as inbox:
        seqs = _preview(inbox, request) if request.bulk else request.seqs
        unchanged = dict(_changes(inbox, request, change, seqs))
        _report(request, len(seqs) - len(unchanged), unchanged)
    if unchanged and not request.bulk:
        raise SystemExit(NOT_SO)


def _can_ask(request: Request) -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not request.as_json


def _preview(inbox: Inbox, request: Request) -> list[int]:
    """Collect the numbers, show what they are, and ask."""
    kinds: Counter[tuple[str, str, str]] = Counter()
    seqs: list[int] = []
    for row in _dead(inbox, request.filters):
        seqs.append(row.seq)
        kinds[row.type, row.source, row.consumer] += 1
    if not request.as_json and kinds:
        rows = [(f"{number:,}", *kind) for kind, number in kinds.most_common(SHOWN)]
        print_table(("messages", "type", "source", "consumer"), rows, right=("messages",))
        if len(kinds) > SHOWN:
            say(f"and {len(kinds) - SHOWN} more kinds")
    if seqs and not request.yes:
        click.confirm(f"{request.verb} {count(len(seqs), 'dead message')}?", abort=True)
    return sorted(seqs)


def _dead(inbox: Inbox, filters: dict[str, Any]) -> Iterator[Row]:
    before: int | None = None
    while page := inbox.admin.messages(status="dead", before=before, limit=PAGE, **filters):
        yield from page
        before = page[-1].seq


def _changes(inbox: Inbox, request: Request, change: Change, seqs: list[int]) -> Iterator[tuple[int, str]]:
    """Change one after the other; yields those that were left alone, and why."""
    for seq in _progress(seqs, request.verb):
        try:
            if not change(inbox, seq, request.reason):
                story = inbox.admin.message(seq)
                yield seq, f"it is {story.status}" if story else "there is no such message"
        except ConfigurationError as refused:
            yield seq, str(refused)


def _progress(seqs: list[int], verb: str) -> Iterable[int]:
    """The numbers, with a bar in a terminal when there are many."""
    out = console(stderr=True)
    if len(seqs) < LONG_WORK or not out.is_terminal:
        return seqs
    return track(seqs, description=verb, console=out, transient=True)


def _report(request: Request, changed: int, unchanged: dict[int, str]) -> None:
    if request.as_json:
        print_json({"changed": changed, "unchanged": unchanged})
        return
    happened = f"{PAST[request.verb]}: {count(changed, 'message')}"
    say(happened if changed or unchanged else "no dead messages match")
    for seq, why in list(unchanged.items())[:SHOWN]:
        say(f"message {seq} was left alone: {why}")
    if len(unchanged) > SHOWN:
        say(f"and {len(unchanged) - SHOWN} more were left alone")
