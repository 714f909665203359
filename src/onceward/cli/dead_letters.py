"""`onceward redrive`, `unblock`, `discard`, `cancel`, `hasten`, `retry-now`, `interrupt`: by number, or in bulk.

Invariant: what is changed is what was shown: `select`, the question, then `apply` to these numbers
(`admin/decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from rich.progress import track

from onceward.admin.decisions import ACTIONS, FILTERS, ActionName, Applied, Selection, selected_by
from onceward.cli.asking import asking, must_ask
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import named
from onceward.cli.output import console, print_json, print_table
from onceward.cli.target import MOMENT, Target, as_json, on_target
from onceward.cli.text import count, examples, say

SHOWN = 10
LONG_WORK = 50


def _selecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that these commands share."""
    for option in (
        as_json,
        asking,
        click.option("--all", "everything", is_flag=True, help="Every message that this command can change in bulk."),
        click.option("--outgoing", is_flag=True, help="Messages of the outbox instead of those that came in."),
        click.option("--until", type=MOMENT, help="Only messages received before."),
        click.option(
            "--since", type=MOMENT, help="Only those received since: 2026-11-15T12:00, or 6h for six hours ago."
        ),
        click.option(
            "--error", "fingerprint", metavar="FINGERPRINT", help="Only those that failed in this way; see explain."
        ),
        click.option("--id", "id", metavar="ID", help="With --source: the message with this id of its producer's."),
        click.option("--source", metavar="NAME", help="Only messages from this source."),
        click.option("--key", metavar="KEY", help="Only messages with this ordering key."),
        click.option("--type", "type", metavar="TYPE", help="Only messages of this type."),
        on_target(rest="[SEQ|ID]..."),
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
@click.option("--out-of-order", is_flag=True, help="Also messages whose key went on without them (see unblock).")
def redrive(target: Target, words: list[str], *, out_of_order: bool, **options: Any) -> None:
    """Give dead messages a new budget: they run again, and their history stays.

    By number, by --source and --id, or in bulk by filters (--type, --error, ...) or --all; bulk shows what it found and
    asks first. Exit code 1 when a message named by number or id was left alone, for example because it is not dead.
    """
    _decide("redrive", target, words, out_of_order=out_of_order, **options)


@click.command(
    epilog=examples(
        'onceward unblock shop:inbox 17 --reason "order cancelled by phone"',
        'onceward unblock shop:inbox --key 4711 --reason "fixed by hand" --yes',
    ),
)
@_selecting
def unblock(target: Target, words: list[str], **options: Any) -> None:
    """Let the messages behind a dead one run: its key goes on without it, and it stays dead.

    By number, by --source and --id, or in bulk by filters (--type, --error, ...) or --all; bulk shows what it found and
    asks first. Exit code 1 when a message named by number or id holds no key back.
    """
    _decide("unblock", target, words, **options)


@click.command(
    epilog=examples(
        'onceward discard shop:inbox 17 --reason "test order"',
        'onceward discard shop:inbox --source old-shop --reason "closed in May" --yes',
        "onceward discard shop:inbox --status unhandled --type order.legacy --preview",
    ),
)
@_selecting
@click.option("--status", type=click.Choice(ACTIONS["discard"].selects), help="Those in this state. [default: dead]")
def discard(target: Target, words: list[str], **options: Any) -> None:
    """Take messages out for good: they never run, and later copies of them are duplicates.

    By number or by --source and --id (any message that is neither finished nor running), or in bulk by filters (--type,
    --error, ...) or --all: the dead ones, or with --status the retrying, scheduled, waiting, unhandled or due ones.
    Bulk shows what it found and asks first. Exit code 1 when a message named by number or id could not be discarded.
    """
    _decide("discard", target, words, **options)


@click.command(
    epilog=examples(
        'onceward cancel shop:inbox 17 --reason "paid already"',
        'onceward cancel shop:inbox --type reminder --key 4711 --reason "order cancelled" --yes',
        "onceward list shop:inbox --status scheduled",
    ),
)
@_selecting
def cancel(target: Target, words: list[str], **options: Any) -> None:
    """Take scheduled messages out for good: they never run, and later copies of them are duplicates.

    By number, by --source and --id, or in bulk by filters (--type, --key, ...) or --all; bulk shows what it found and
    asks first. Exit code 1 when a message named by number or id is not scheduled (any more).
    """
    _decide("cancel", target, words, **options)


@click.command(
    epilog=examples(
        'onceward hasten shop:inbox 17 --reason "the customer waits"',
        'onceward hasten shop:inbox --type reminder --reason "earlier than planned" --yes',
    ),
)
@_selecting
def hasten(target: Target, words: list[str], **options: Any) -> None:
    """Run scheduled messages now, instead of at their time.

    By number or by --source and --id (also one that waits for its next try), or the scheduled ones in bulk by filters
    (--type, --key, ...) or --all; bulk shows what it found and asks first. Exit code 1 when a message named by number
    or id does not wait for a time.
    """
    _decide("hasten", target, words, **options)


@click.command(
    epilog=examples(
        'onceward interrupt shop:inbox 17 --reason "it holds the lock of the whole table"',
        'onceward interrupt shop:inbox --type report --reason "it takes all connections" --yes',
        "onceward workers shop:inbox",
    ),
)
@_selecting
def interrupt(target: Target, words: list[str], **options: Any) -> None:
    """Take running messages from their workers: nothing of them is committed, and they are dead.

    Their handlers are interrupted within a second, as far as that is possible: a def handler at its next statement, an
    async def handler where it waits. What a handler did outside of its transaction has happened. By number, by --source
    and --id, or in bulk by filters (--type, --key, ...) or --all; bulk shows what it found and asks first. Exit code 1
    when a message named by number or id does not run (any more).
    """
    _decide("interrupt", target, words, **options)


@click.command(
    "retry-now",
    epilog=examples(
        'onceward retry-now shop:inbox 17 --reason "the bank is back"',
        'onceward retry-now shop:inbox --type order.paid --reason "the bank is back" --yes',
        "onceward retry-now shop:inbox --error 4f1c22ab09de --preview",
    ),
)
@_selecting
def retry_now(target: Target, words: list[str], **options: Any) -> None:
    """Run messages that wait for another try now, instead of when their delay is over.

    By number, by --source and --id, or in bulk by filters (--type, --error, ...) or --all; bulk shows what it found and
    asks first. Their attempts stay: one more failure counts like any other. Exit code 1 when a message named by number
    or id does not wait.
    """
    _decide("retry-now", target, words, **options)


def _decide(  # noqa: PLR0913 - the options of the commands
    verb: ActionName,
    target: Target,
    words: list[str],
    *,
    everything: bool,
    preview: bool,
    reason: str | None,
    yes: bool,
    as_json: bool,
    out_of_order: bool = False,
    status: str | None = None,
    **given: Any,
) -> None:
    filters = {name: given[name] for name in (*FILTERS, "id") if given[name]}
    if (
        bool(words) == (everything or bool(filters))
        or (words and status)
        or (everything and filters.keys() - {"outgoing"})
    ):
        raise Failure(
            f"Name what to {verb}: numbers or ids, --source and --id, --type/--key/--source/--error/--since/--until, "
            "or --all",
            WRONG_USAGE,
        )
    is_named = bool(words) or "id" in filters
    asks = must_ask(preview=preview, yes=yes or is_named, as_json=as_json, reason=reason)
    with target.open() as inbox:
        status = status or selected_by(verb)
        found = inbox.admin.select(*named(inbox, words), status=status, **filters)
        if preview and as_json:
            print_json({"found": list(found.seqs)})
        elif not as_json and (preview or not is_named):
            _show(found)
        if preview:
            if not (as_json or found.seqs):
                say(f"no {status} messages match")
            return
        if asks and found.seqs:
            click.confirm(f"{verb} {count(len(found.seqs), f'{status} message')}?", abort=True)
        numbered = _progress(found.seqs, verb)
        applied = inbox.admin.apply(verb, numbered, reason=reason or "", out_of_order=out_of_order)
    _report(ACTIONS[verb].past, status, applied, as_json=as_json)
    if is_named and (applied.left or not found.seqs):
        raise SystemExit(NOT_SO)


def _show(found: Selection) -> None:
    """What was selected, by kind."""
    if not found.kinds:
        return
    rows = [(f"{number:,}", *kind) for kind, number in found.kinds.most_common(SHOWN)]
    print_table(("messages", "type", "source", "consumer"), rows, right=("messages",))
    if len(found.kinds) > SHOWN:
        say(f"and {len(found.kinds) - SHOWN} more kinds")


def _progress(seqs: Sequence[int], verb: str) -> Iterable[int]:
    """The numbers, with a bar in a terminal when there are many."""
    out = console(stderr=True)
    if len(seqs) < LONG_WORK or not out.is_terminal:
        return seqs
    return track(seqs, description=verb, console=out, transient=True)


def _report(past: str, status: str, applied: Applied, *, as_json: bool) -> None:
    changed, left = len(applied.changed), applied.left
    if as_json:
        print_json({"changed": changed, "unchanged": left})
        return
    say(f"{past}: {count(changed, 'message')}" if changed or left else f"no {status} messages match")
    for seq, why in list(left.items())[:SHOWN]:
        say(f"message {seq} was left alone: {why}")
    if len(left) > SHOWN:
        say(f"and {len(left) - SHOWN} more were left alone")
