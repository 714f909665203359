"""`onceward quarantine`: mismatches (ids that came again with other bytes or another type) and decisions about them."""

from __future__ import annotations

import json
from typing import Any, get_args

import click

from onceward.admin.messages import Mismatch
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import heading, print_fields, print_json, print_table
from onceward.cli.target import Target, as_json, numbers, on_target
from onceward.cli.text import ago, count, examples, say
from onceward.stores.moves.operations import Resolution

RESOLUTIONS: tuple[Resolution, ...] = get_args(Resolution)
NUMBER_AND_RESOLUTION = 2
# The first line tells click to leave the others as they are.
MEANINGS = """\b
keep-first     the first body is right; further copies of the other one are duplicates
accept-as-new  the other body is a message of its own and runs
discard        forget the mismatch; should the other body come again, it is a new one

"""


@click.group()
def quarantine() -> None:
    """List mismatches, which are known ids that came again with other bytes or another type, and decide about them.

    The other body never runs and never overwrites the first one; both are kept.
    """


@quarantine.command(
    "list", short_help="List the open mismatches.", epilog=examples("onceward quarantine list shop:inbox")
)
@on_target()
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="How many at most."
)
@as_json
def list_cases(target: Target, *, limit: int, as_json: bool) -> None:
    """List the open mismatches, with what differs between the two bodies."""
    with target.open() as inbox:
        cases = inbox.admin.quarantine(limit=limit)
    if as_json:
        print_json([_with_names(case) for case in cases])
        return
    if not cases:
        say("no open mismatches")
        return
    for case in cases:
        _print_case(case)
    say()
    number = count(len(cases), "open mismatch")
    example = inbox.context.hint("resolve", cases[0].case, "keep-first", "--reason TEXT")
    say(f"{number}; decide each, for example: {example}   (or {' or '.join(RESOLUTIONS[1:])})")


def _with_names(case: Mismatch) -> dict[str, Any]:
    fields = {name: getattr(case, name) for name in case.__dataclass_fields__}
    fields["differences"] = [{"field": path, "first": first, "other": other} for path, first, other in case.differences]
    return fields


def _print_case(case: Mismatch) -> None:
    heading(f"mismatch {case.case}")
    print_fields(
        [
            ("message", case.seq),
            ("kind", case.kind),
            ("type", _types(case)),
            ("source", case.source),
            ("id", case.id),
            ("consumer", case.consumer),
            ("came", f"{count(case.copies, 'time')}, last {ago(case.last_at)}"),
        ]
    )
    if case.kind == "type":
        say("the bytes are the same; only the type or its version differs")
    elif case.first_body is None:
        say("the first body is not kept any more; its hash is " + case.first_hash)
        say("the hash of the other body is                    " + case.other_hash)
    elif case.differences:
        rows = [(path or "(all)", _short(first), _short(other)) for path, first, other in case.differences]
        print_table(("field", "first", "other"), rows)
    else:
        say("the bodies have equal values in different bytes (spaces, or the order of fields)")


def _types(case: Mismatch) -> str:
    other = f"{case.type} version {case.version}"
    first = "another one" if case.first_type is None else f"{case.first_type} version {case.first_version}"
    return f"{other}, first {first}" if case.kind == "type" else other


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # also text: "7" is not 7


@quarantine.command(
    epilog=MEANINGS
    + examples(
        'onceward resolve shop:inbox 3 keep-first --reason "sender bug, ticket 81"',
        'onceward quarantine resolve shop:inbox 3 accept-as-new --reason "two orders, one number"',
    ),
)
@on_target(rest="NUMBER RESOLUTION")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit.")
@as_json
def resolve(target: Target, words: list[str], *, reason: str, as_json: bool) -> None:
    """Decide about the mismatch with this number; RESOLUTION is keep-first, accept-as-new or discard.

    Exit code 1 when the mismatch is not open.
    """
    if len(words) != NUMBER_AND_RESOLUTION or words[1] not in RESOLUTIONS:
        raise Failure(
            f"give the number of the mismatch and one of {', '.join(RESOLUTIONS)}, for example: "
            'onceward resolve shop:inbox 3 keep-first --reason "sender bug"',
            WRONG_USAGE,
        )
    (case,) = numbers(words[:1], "NUMBER")
    (resolution,) = (known for known in RESOLUTIONS if known == words[1])
    with target.open() as inbox:
        seq = inbox.admin.resolve(case, resolution, reason=reason)
    if seq is None:
        raise Failure(f"mismatch {case} is not open; see: {inbox.context.hint('quarantine list')}", NOT_SO)
    if as_json:
        print_json({"case": case, "resolution": resolution, "seq": seq})
    elif resolution == "accept-as-new":
        say(f"mismatch {case}: accepted as message {seq}")
    else:
        say(f"mismatch {case}: {resolution}, message {seq} stays as it is")


@quarantine.command(
    "keep-first",
    short_help="Decide every mismatch in which only the type differs.",
    epilog=examples(
        'onceward quarantine keep-first shop:inbox --source stripe --type invoice.paid --reason "renamed in May"'
    ),
)
@on_target()
@click.option("--source", required=True, metavar="NAME", help="The source of the messages.")
@click.option("--type", "message_type", required=True, metavar="TYPE", help="The type under which they came again.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit.")
@as_json
def keep_first(target: Target, *, source: str, message_type: str, reason: str, as_json: bool) -> None:
    """Decide every open mismatch of kind "type" of a source and a type: the first message is kept.

    For a sender that has renamed its events: what it delivers again under the new type is then a duplicate.
    """
    with target.open() as inbox:
        decided = inbox.admin.keep_first(source=source, type=message_type, reason=reason)
    if as_json:
        print_json({"source": source, "type": message_type, "decided": decided})
    else:
        say(f"{count(decided, 'mismatch')} decided: keep-first")
