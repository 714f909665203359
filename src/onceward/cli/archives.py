"""`onceward archive` and `onceward replay`: messages to files, and from there back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as changed
from datetime import datetime, timedelta
from typing import Any

import click

from onceward.cli.asking import must_ask, preview_option, yes_option
from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.output import console, print_json, print_table
from onceward.cli.target import MOMENT, Target, as_json, on_target
from onceward.cli.text import count, examples, say
from onceward.retention.archive import Archive
from onceward.retention.replay import chosen
from onceward.retention.replay import copy as copied_to
from onceward.retention.replay import replay as give_back


def _folder(words: list[str]) -> str:
    if len(words) != 1:
        raise Failure("give one FOLDER for the archive, for example /var/archive/shop", WRONG_USAGE)
    return words[0]


@click.command(
    short_help="Move old finished messages to files.",
    epilog=examples(
        "onceward archive shop:inbox /var/archive/shop",
        "onceward archive shop:inbox /var/archive/shop --verify",
        "onceward archive shop:inbox tests/day --copy --since 1d",
        "zcat /var/archive/shop/messages/*.jsonl.gz | jq .type | sort | uniq -c",
    ),
)
@on_target(rest="FOLDER")
@click.option(
    "--days",
    type=click.FloatRange(min=0, max=36_500),
    help="Archive what is older than this. [default: body_retention]",
)
@click.option("--verify", is_flag=True, help="Only check that every file is there and as it was written.")
@click.option("--copy", "copies", is_flag=True, help="Copy instead of moving: a recorded day, for tests.")
@click.option(
    "--since", type=MOMENT, help="With --copy: only those received since: 2026-11-15T12:00, or 1d for a day ago."
)
@click.option("--until", type=MOMENT, help="With --copy: only those received before.")
@as_json
def archive(  # noqa: PLR0913 - each says what goes there
    target: Target,
    words: list[str],
    *,
    days: float | None,
    verify: bool,
    copies: bool,
    since: datetime | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Move the bodies of finished messages older than body_retention to compressed JSON Lines in FOLDER.

    A body leaves the database when its file is on the disk and in the manifest. With Settings(archive_first=True) it
    goes in no other way. With --copy the messages stay in the database: a recorded day, for tests.
    """
    folder = _folder(words)
    if (since or until) and not copies:
        raise Failure("--since and --until need --copy; without it use --days", WRONG_USAGE)
    if copies and (days is not None or verify):
        raise Failure("--copy takes --since and --until, but not --days or --verify", WRONG_USAGE)
    if verify:
        files = Archive(folder).files()
        for file in files:
            Archive(folder).check(file)
        messages = sum(file.messages for file in files)
        if as_json:
            print_json({"files": len(files), "messages": messages})
        else:
            say(f"{count(len(files), 'file')} with {count(messages, 'message')}, all as they were written")
        return
    if copies:
        with target.open() as inbox, console(stderr=True).status("copying") as status:
            written = copied_to(
                inbox,
                folder,
                since=since,
                until=until,
                progress=lambda so_far: status.update(f"copied: {so_far:,}"),
            )
        print_json({"copied": written}) if as_json else say(f"copied: {count(written, 'message')} to {folder}")
        return
    if target.program is None and days is None:
        raise Failure("--store needs --days: only the program knows its body_retention", WRONG_USAGE)
    with target.open() as inbox, console(stderr=True).status("archiving") as status:
        if days is not None:
            inbox.context.settings = changed(inbox.context.settings, body_retention=timedelta(days=days))
        moved = inbox.retention.archive(folder, progress=lambda so_far: status.update(f"archived: {so_far:,}"))
    if as_json:
        print_json({"archived": moved})
    else:
        say(f"archived: {count(moved, 'message')} to {folder}")


@click.command(
    short_help="Receive finished messages again, from the database or an archive.",
    epilog=examples(
        "onceward replay shop:inbox --type order.paid --since 7d --preview",
        "onceward replay shop:inbox --source stripe --id evt_1 --again fixed-1.4.2",
        "onceward replay shop:inbox /var/archive/shop --type order.paid --preview",
        "onceward replay shop:inbox /var/archive/shop --key 4711 --again 2026-11-audit",
    ),
)
@on_target(rest="[FOLDER]")
@click.option("--type", "type", metavar="TYPE", help="Only messages of this type.")
@click.option("--key", metavar="KEY", help="Only messages with this ordering key.")
@click.option("--source", metavar="NAME", help="Only messages from this source.")
@click.option("--id", "id", metavar="ID", help="Only the message with this id of its producer's.")
@click.option("--since", type=MOMENT, help="Only those received since: 2026-11-15T12:00, or 7d for seven days ago.")
@click.option("--until", type=MOMENT, help="Only those received before.")
@click.option("--again", metavar="LABEL", help="Run them as new messages: the label is added to their ids.")
@preview_option
@yes_option
@as_json
def replay(  # noqa: PLR0913 - each is a filter or a way to go about it
    target: Target, words: list[str], *, again: str | None, preview: bool, yes: bool, as_json: bool, **filters: Any
) -> None:
    """Receive finished messages again, from an archive in FOLDER, else from the database as far as bodies are kept.

    A message that a consumer still remembers is a duplicate for it; one that it has forgotten, or never had, runs.
    With --again every message runs, as a new one; the same LABEL a second time runs nothing.
    """
    folder = _folder(words) if words else None
    asks = must_ask(preview=preview, yes=yes, as_json=as_json)
    with target.open() as inbox:
        found = chosen(inbox if folder is None else folder, **filters)
        kinds = Counter((record["type"], record["source"]) for record in found)
        if not as_json:
            rows = [(f"{number:,}", *kind) for kind, number in kinds.most_common()]
            print_table(("messages", "type", "source"), rows, right=("messages",))
        if preview:
            if as_json:
                print_json({"messages": kinds.total()})
            return
        if asks:
            click.confirm(f"replay {count(kinds.total(), 'message')}?", abort=True)
        with console(stderr=True).status("replaying") as status:
            became = give_back(
                inbox, folder, again=again, progress=lambda so_far: status.update(f"replayed: {so_far:,}"), **filters
            )
    if as_json:
        print_json(dict(became))
    else:
        say("replayed: " + (", ".join(f"{number:,} {status}" for status, number in became.items()) or "nothing"))
