"""`onceward quarantine`: ids that came again with other bytes or another type, and the decision about them."""

from __future__ import annotations

import json
from typing import Any, get_args

import click

from onceward.admin.messages import Mismatch
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import heading, print_fields, print_json, print_table
from onceward.cli.target import Target, as_json, numbers, on_target
from onceward.cli.text import ago, count, examples, say
from onceward.steps.operate import Resolution

RESOLUTIONS: tuple[Resolution, ...] = get_args(Resolution)
CASE_AND_RESOLUTION = 2
# The first line tells click to leave the others as they are.
MEANINGS = """\b
keep-first     the first body is right; further copies of the other one are duplicates
accept-as-new  the other body is a message of its own and runs
discard        forget this case; should the other body come again, it is a new case

"""


@click.group()
def quarantine() -> None:
    """Look at ids that came again with other bytes, or under another type, and decide about them.

    Such a message never runs and never overwrites the first one; both bodies are kept.
    """


@quarantine.command("list", short_help="List the open cases.", epilog=examples("onceward quarantine list shop:inbox"))
@on_target()
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="At most so many."
)
@as_json
def list_cases(target: Target, *, limit: int, as_json: bool) -> None:
    """List the open cases, with what differs between the two bodies."""
    with target.open() as inbox:
        cases = inbox.admin.quarantine(limit=limit)
    if as_json:
        print_json([_with_names(case) for case in cases])
        return
    if not cases:
        say("no open cases")
        return
    for case in cases:
        _print_case(case)
    say()
    say(f"{count(len(cases), 'open case')}; decide with: onceward quarantine resolve ... CASE {'|'.join(RESOLUTIONS)}")


def _with_names(case: Mismatch) -> dict[str, Any]:
    fields = {name: getattr(case, name) for name in case.__dataclass_fields__}
    fields["differences"] = [{"field": path, "first": first, "other": other} for path, first, other in case.differences]
    return fields


def _print_case(case: Mismatch) -> None:
    heading(f"case {case.case}")
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
        say("the bodies say the same in different bytes (spaces, or the order of fields)")


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
@on_target(rest="CASE RESOLUTION")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit.")
@as_json
def resolve(target: Target, words: list[str], *, reason: str, as_json: bool) -> None:
    """Decide about a case; RESOLUTION is keep-first, accept-as-new or discard.

    Exit code 1 when the case is not open.
    """
    if len(words) != CASE_AND_RESOLUTION or words[1] not in RESOLUTIONS:
        raise Failure(f"say CASE and one of {', '.join(RESOLUTIONS)}", WRONG_USAGE)
    (case,) = numbers(words[:1], "CASE")
    (resolution,) = (known for known in RESOLUTIONS if known == words[1])
    with target.open() as inbox:
        seq = inbox.admin.resolve(case, resolution, reason=reason)
    if seq is None:
        raise Failure(f"case {case} is not open; see: onceward quarantine list", NOT_SO)
    if as_json:
        print_json({"case": case, "resolution": resolution, "seq": seq})
    elif resolution == "accept-as-new":
        say(f"case {case}: accepted as message {seq}")
    else:
        say(f"case {case}: {resolution}, message {seq} stays as it is")


@quarantine.command(
    "keep-first",
    short_help="Decide every case in which only the type differs.",
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
    """Decide every open case of kind "type" of a source and a type for the first message.

    For a sender whose events are called otherwise now: what it delivers again is then a duplicate, as it was.
    """
    with target.open() as inbox:
        decided = inbox.admin.keep_first(source=source, type=message_type, reason=reason)
    if as_json:
        print_json({"source": source, "type": message_type, "decided": decided})
    else:
        say(f"{count(decided, 'case')} decided: keep-first")
