"""`onceward list` and `onceward show`: look at messages."""

from __future__ import annotations

import json
from typing import Any

import click

from onceward.admin.messages import STATUSES, Row, Story
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import STYLES, heading, print_fields, print_json, print_table, styled
from onceward.cli.target import MOMENT, Target, as_json, numbers, on_target
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
@click.option("--status", type=click.Choice(STATUSES), help="Only messages in this state.")
@click.option("--type", "type_", metavar="TYPE", help="Only messages of this type.")
@click.option("--key", metavar="KEY", help="Only messages with this ordering key.")
@click.option("--source", metavar="NAME", help="Only messages from this source.")
@click.option("--error", "fingerprint", metavar="FINGERPRINT", help="Only those that failed in this way; see explain.")
@click.option("--since", type=MOMENT, help="Only those received since: 2026-11-15T12:00, or 6h for six hours ago.")
@click.option("--until", type=MOMENT, help="Only those received before.")
@click.option("--outgoing", is_flag=True, help="Messages of the outbox instead of those that came in.")
@click.option("--before", type=click.IntRange(min=1, max=2**63 - 1), metavar="SEQ", help="Only older ones: next page.")
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="At most so many."
)
@as_json
def list_messages(target: Target, *, type_: str | None, limit: int, as_json: bool, **filters: Any) -> None:
    """List messages, newest first."""
    with target.open() as inbox:
        rows = inbox.admin.messages(type=type_, limit=limit, **filters)
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no messages match")
        return
    print_table(COLUMNS, map(_cells, rows), right=("seq", "tries"), cut=True)
    if len(rows) == limit:
        say(f"perhaps there are more: --before {rows[-1].seq}")


def _cells(row: Row) -> tuple[object, ...]:
    tries = f"{row.attempts}+{row.crashes}" if row.crashes else str(row.attempts)
    error = (row.error or "").partition("\n")[0]
    status = styled(row.status, STYLES.get(row.status, ""))
    return row.seq, status, row.type, row.source, row.id, row.key or "", tries, ago(row.received_at, units=1), error


@click.command(
    epilog=examples(
        "onceward show shop:inbox 17",
        "onceward show --store sqlite:///shop.db 17",
        "onceward show shop:inbox --source stripe --id evt_1",
    ),
)
@on_target(rest="[SEQ]")
@click.option("--source", metavar="NAME", help="With --id: find the message by the producer's own id.")
@click.option("--id", "id_", metavar="ID", help="With --source.")
@as_json
def show(target: Target, words: list[str], *, source: str | None, id_: str | None, as_json: bool) -> None:
    """Show everything known about a message: its state, body, attempts, duplicates and what people did to it.

    Exit code 1 when there is no such message. With --json a number gives one object, an id a list: one for each
    consumer.
    """
    with target.open() as inbox:
        seqs = sought(inbox, words, source, id_)
        stories = [_story(inbox, seq) for seq in seqs]
    if as_json:
        # By number there is one; an id may have one for each consumer.
        print_json(stories if source is not None else stories[0])
        return
    for story in stories:
        _print_story(story)


def sought(inbox: Inbox, words: list[str], source: str | None, message_id: str | None) -> list[int]:
    """The numbers of the message that a command is about: one SEQ, or whoever has the id of a source."""
    seqs = numbers(words, "SEQ")
    if (source is None) != (message_id is None) or (not seqs) == (source is None) or len(seqs) > 1:
        raise Failure("say which message: one SEQ, or --source NAME and --id ID", WRONG_USAGE)
    if source is not None and message_id is not None:
        seqs = inbox.admin.find(source, message_id)
        if not seqs:
            raise Failure(f"there is no message with id {message_id} from source {source}", NOT_SO)
    return seqs


def _story(inbox: Inbox, seq: int) -> Story:
    story = inbox.admin.message(seq)
    if story is None:
        raise Failure(f"there is no message with number {seq}", NOT_SO)
    return story


def _print_story(story: Story) -> None:
    worker = f"worker {story.finished_by}" if story.finished_by else ""
    print_fields(
        [
            ("message", story.seq),
            ("status", story.status),
            ("type", f"{story.type} (version {story.version})" if story.type else "(its body is gone)"),
            ("source", story.source),
            ("id", story.id),
            ("key", story.key),
            ("consumer", story.consumer),
            ("to", story.destination),
            ("caused by", f"message {story.cause}" if story.cause else ""),
            ("received", f"{story.received_at:%Y-%m-%d %H:%M:%S} UTC, {ago(story.received_at)}"),
            ("due", ago(story.due_at)),
            ("held by", f"worker {story.worker}" if story.worker else ""),
            ("attempts", story.attempts or ""),
            ("crashes", story.crashes or ""),
            ("finished", f"{story.finished_at:%Y-%m-%d %H:%M:%S} UTC by {worker}" if story.finished_at else ""),
            ("code", story.code_version),
            ("duplicates", story.duplicates or ""),
            ("error", story.history[-1].fingerprint if story.history else ""),
            ("hash", story.hash),
            ("result", "" if story.result is None else json.dumps(story.result, ensure_ascii=False)),
        ]
    )
    if story.headers:
        heading("headers")
        print_fields((visible(name), value) for name, value in story.headers.items())
    heading("body")
    say(story.body_problem or body_text(story.body))
    for attempt in story.history:
        charged = "" if attempt.charged else ", not charged"
        heading(f"{attempt.kind} {ago(attempt.at)} (attempt {attempt.attempt}{charged})")
        say((attempt.traceback or attempt.error).rstrip())
    if story.effects:
        heading("effects")
        calls = [
            (call.name, "done" if call.done else "outcome unknown", ago(call.started_at)) for call in story.effects
        ]
        print_table(("name", "state", "begun"), calls)
    if story.sent:
        heading("sent")
        sent = [(one.seq, one.type, one.to or "default", one.id) for one in story.sent]
        print_table(("seq", "type", "to", "id"), sent, right=("seq",))
    if story.actions:
        heading("actions")
        rows = [(ago(action.at), action.actor, action.action, action.reason) for action in story.actions]
        print_table(("when", "who", "what", "reason"), rows)


def body_text(body: bytes | None) -> str:
    """A body for people."""
    if body is None:
        return "(not kept)"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes that are not text) {body[:200]!r}"
    try:
        # The strict reader: what it refuses (two fields of one name, for example) is shown as it came.
        return json.dumps(payload.decode(body), indent=2, ensure_ascii=False)
    except InvalidMessage:
        return text
