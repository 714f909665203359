"""`onceward list` and `onceward show`: look at messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from onceward.admin.messages import STATUSES, MessageDetail, Row
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import STYLES, heading, print_fields, print_json, print_table, styled, wide_option
from onceward.cli.target import MOMENT, Target, as_json, is_number, on_target
from onceward.cli.text import ago, examples, say, visible
from onceward.domain import payload
from onceward.errors import InvalidMessage
from onceward.inbox import Inbox

COLUMNS = ("seq", "status", "type", "source", "id", "key", "tries", "received", "error")


@click.command(
    "list",
    epilog=examples(
        "onceward list shop:inbox --status dead",
        "onceward list --store sqlite:///shop.db --type order.paid --limit 10",
        "onceward list shop:inbox --before 1200        (the page after number 1200)",
    ),
)
@on_target()
@click.option("--status", type=click.Choice(STATUSES), help="Only messages with this status.")
@click.option("--type", "type_", metavar="TYPE", help="Only messages of this type.")
@click.option("--key", metavar="KEY", help="Only messages with this ordering key.")
@click.option("--source", metavar="NAME", help="Only messages from this source.")
@click.option("--error", "fingerprint", metavar="FINGERPRINT", help="Only those that failed in this way; see explain.")
@click.option("--since", type=MOMENT, help="Only those received since: 2026-11-15T12:00, or 6h for six hours ago.")
@click.option("--until", type=MOMENT, help="Only messages received before.")
@click.option("--outgoing", is_flag=True, help="Messages of the outbox instead of those that came in.")
@click.option(
    "--before", type=click.IntRange(min=1, max=2**63 - 1), metavar="SEQ", help="Only older ones: the next page."
)
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="How many at most."
)
@wide_option
@as_json
def list_messages(target: Target, *, type_: str | None, limit: int, wide: bool, as_json: bool, **filters: Any) -> None:
    """List messages, newest first."""
    with target.open() as inbox:
        rows = inbox.admin.messages(type=type_, limit=limit, **filters)
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no messages match")
        return
    print_table(
        COLUMNS, map(_cells, rows), right=("seq", "tries"), cut=True, more=("source", "key", "tries"), wide=wide
    )
    if len(rows) == limit:
        say(f"There may be more; for older ones add --before {rows[-1].seq}")


def _cells(row: Row) -> tuple[object, ...]:
    tries = f"{row.attempts}+{row.crashes}" if row.crashes else str(row.attempts)
    error = (row.error or "").partition("\n")[0]
    status = styled(row.status, STYLES.get(row.status, ""))
    return row.seq, status, row.type, row.source, row.id, row.key or "", tries, ago(row.received_at, units=1), error


@click.command(
    epilog=examples(
        "onceward show shop:inbox 17",
        "onceward show --store sqlite:///shop.db 17",
        "onceward show shop:inbox evt_1",
        "onceward show shop:inbox --source stripe --id evt_1",
    ),
)
@on_target(rest="[SEQ|ID]")
@click.option("--source", metavar="NAME", help="With --id: find the message by its producer's id.")
@click.option("--id", "id_", metavar="ID", help="With --source: the producer's message id.")
@as_json
def show(target: Target, words: list[str], *, source: str | None, id_: str | None, as_json: bool) -> None:
    """Show a message: its status, body, attempts, duplicates, effects, and what operators did to it.

    Exit code 1 when there is no such message. With --json a number gives one object, an id a list: one for each
    consumer.
    """
    with target.open() as inbox:
        seqs = sought(inbox, words, source, id_)
        details = [_detail(inbox, seq) for seq in seqs]
    if as_json:
        # By number there is one; an id may have one for each consumer.
        print_json(details if source is not None or len(details) > 1 else details[0])
        return
    for detail in details:
        _print_detail(detail)


def sought(inbox: Inbox, words: list[str], source: str | None, message_id: str | None) -> list[int]:
    """The numbers of the message that a command is about: one SEQ or ID, or the one with the id of a source."""
    if (source is None) != (message_id is None) or (not words) == (source is None) or len(words) > 1:
        raise Failure("name one message: its number or id, or --source NAME and --id ID", WRONG_USAGE)
    seqs = named(inbox, words)
    if source is not None and message_id is not None:
        seqs = inbox.admin.find(source, message_id)
        if not seqs:
            raise Failure(f"there is no message with id {message_id} from source {source}", NOT_SO)
    return seqs


def named(inbox: Inbox, words: Sequence[str]) -> list[int]:
    """The numbers of messages: a word that is no number is the producer's id, from whatever source."""
    seqs: list[int] = []
    for word in words:
        found = [int(word)] if is_number(word) else inbox.admin.find_anywhere(word)
        if not found:
            raise Failure(f"there is no message with id {word}", NOT_SO)
        seqs += found
    return list(dict.fromkeys(seqs))


def only(inbox: Inbox, words: Sequence[str]) -> int:
    """The number of the one message that a command is about."""
    if len(words) != 1:
        raise Failure("name one message: its number or id", WRONG_USAGE)
    seqs = named(inbox, words)
    if len(seqs) > 1:
        numbers = ", ".join(map(str, seqs))
        raise Failure(
            f"{words[0]!r} is {len(seqs)} messages, for several consumers: name one of {numbers}", WRONG_USAGE
        )
    return seqs[0]


def _detail(inbox: Inbox, seq: int) -> MessageDetail:
    detail = inbox.admin.message(seq)
    if detail is None:
        raise Failure(f"there is no message with number {seq}", NOT_SO)
    return detail


def _print_detail(detail: MessageDetail) -> None:
    worker = f"worker {detail.finished_by}" if detail.finished_by else ""
    print_fields(
        [
            ("message", detail.seq),
            ("status", detail.status),
            ("type", f"{detail.type} (version {detail.version})" if detail.type else "(body not kept)"),
            ("source", detail.source),
            ("id", detail.id),
            ("key", detail.key),
            ("consumer", detail.consumer),
            ("to", detail.destination),
            ("caused by", f"message {detail.cause}" if detail.cause else ""),
            ("received", f"{detail.received_at:%Y-%m-%d %H:%M:%S} UTC, {ago(detail.received_at)}"),
            ("due", ago(detail.due_at)),
            ("held by", f"worker {detail.worker}" if detail.worker else ""),
            ("attempts", detail.attempts or ""),
            ("crashes", detail.crashes or ""),
            ("finished", f"{detail.finished_at:%Y-%m-%d %H:%M:%S} UTC by {worker}" if detail.finished_at else ""),
            ("code", detail.code_version),
            ("duplicates", detail.duplicates or ""),
            ("error", detail.history[-1].fingerprint if detail.history else ""),
            ("hash", detail.hash),
            ("result", "" if detail.result is None else json.dumps(detail.result, ensure_ascii=False)),
        ]
    )
    if detail.headers:
        heading("headers")
        print_fields((visible(name), value) for name, value in detail.headers.items())
    heading("body")
    say(detail.body_problem or body_text(detail.body))
    for attempt in detail.history:
        charged = "" if attempt.charged else ", not charged"
        heading(f"{attempt.kind} {ago(attempt.at)} (attempt {attempt.attempt}{charged})")
        say((attempt.traceback or attempt.error).rstrip())
    if detail.effects:
        heading("effects")
        calls = [
            (call.name, "done" if call.done else "outcome unknown", ago(call.started_at)) for call in detail.effects
        ]
        print_table(("name", "state", "begun"), calls)
    if detail.sent:
        heading("sent")
        sent = [(one.seq, one.type, one.to or "default", one.id) for one in detail.sent]
        print_table(("seq", "type", "to", "id"), sent, right=("seq",))
    if detail.actions:
        heading("actions")
        rows = [(ago(action.at), action.actor, action.action, action.reason) for action in detail.actions]
        print_table(("when", "who", "what", "reason"), rows)


def body_text(body: bytes | None, *, indent: int | None = 2) -> str:
    """A body for people; on one line with `indent=None`."""
    if body is None:
        return "(not kept)"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes that are not text) {body[:200]!r}"
    try:
        # The strict reader: what it refuses (two fields of one name, for example) is shown as it came.
        return json.dumps(payload.decode(body), indent=indent, ensure_ascii=False)
    except InvalidMessage:
        return text
