"""`onceward erase`: erase a person's data from messages; what is erased is what was shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from onceward.cli.asking import must_ask, preview_option, yes_option
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import named
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say
from onceward.inbox import Inbox
from onceward.retention.archive import Archive
from onceward.steps.erase import Match


@click.command(
    epilog=examples(
        "onceward erase shop:inbox --field customer.email=ann@example.com --preview",
        'onceward erase shop:inbox --key customer-17 --reason "request 4711"',
        'onceward erase shop:inbox --source stripe --id evt_1 --reason "request 4711" --yes',
    ),
)
@on_target(rest="[SEQ|ID]...")
@click.option("--key", metavar="KEY", help="Messages with this ordering key.")
@click.option("--field", metavar="PATH=VALUE", help="Messages with this value in a field, or in header:NAME.")
@click.option("--source", metavar="NAME", help="With --id: the message with this id, and what its handlers sent.")
@click.option("--id", "id_", metavar="ID", help="With --source: the producer's message id.")
@click.option("--archive", metavar="FOLDER", help="Erase in the files of this archive, too: a folder, or s3://...")
@click.option("--reason", metavar="TEXT", help="Why; kept in the audit. Do not repeat the data itself here.")
@preview_option
@yes_option
@as_json
def erase(target: Target, words: list[str], *, preview: bool, reason: str | None, yes: bool, **options: Any) -> None:
    """Erase bodies, headers, keys, results and errors of messages: live, finished, dead, outgoing, in quarantine.

    Unfinished messages are discarded first. Ids and hashes stay, so that copies are still recognised. Exit code 1 when
    a message could not be erased, for example because it is running: try again.
    """
    as_json, folder = options.pop("as_json"), options.pop("archive")
    asks = must_ask(preview=preview, yes=yes, as_json=as_json, reason=reason)
    find = _finder(words, **options)
    if words and folder:
        raise Failure("an archive is searched by --key, --field, or --source and --id, not by number", WRONG_USAGE)
    if folder and not Archive(folder).files():
        raise Failure(f"there is no archive in {folder}: name the folder that messages were archived to", WRONG_USAGE)
    with target.open() as inbox:
        found = find(inbox)
        if not as_json:
            _show(found)
        elif preview:
            print_json({"found": found})
        if preview or not (found or as_json or folder):
            return
        if asks and (found or folder):
            click.confirm(f"erase {count(len(found), 'message')} for good?", abort=True)
        left = inbox.retention.erase(*(match.seq for match in found), reason=reason or "")
        archived = inbox.retention.erase_archived(folder, **_criteria(**options)) if folder else 0
    _report(len(found) - len(left), left, archived, as_json=as_json)


def _finder(
    words: list[str], *, key: str | None, field: str | None, source: str | None, id_: str | None
) -> Callable[[Inbox], list[Match]]:
    """How to find what the command line names."""
    if (source is None) != (id_ is None) or sum(map(bool, (words, key, field, id_))) != 1:
        raise Failure(
            "name what to erase: numbers or ids, --key, --field PATH=VALUE, or --source and --id", WRONG_USAGE
        )
    if field is not None and "=" not in field:
        raise Failure("--field has the form PATH=VALUE, for example customer.email=ann@example.com", WRONG_USAGE)
    if words:
        return lambda inbox: _numbered(inbox, named(inbox, words))
    return lambda inbox: inbox.retention.personal(**_criteria(key=key, field=field, source=source, id_=id_))


def _criteria(*, key: str | None, field: str | None, source: str | None, id_: str | None) -> dict[str, Any]:
    path, _, value = (field or "").partition("=")
    return {"key": key, "field": None if field is None else (path, value), "source": source, "id": id_}


def _report(erased: int, left: list[int], archived: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"erased": erased, "left": left, "archived": archived})
    else:
        say(f"erased: {count(erased, 'message')}" + (f", and {archived:,} in the archive" if archived else ""))
        for seq in left:
            say(f"message {seq} was left alone: it is running, or waits behind another; try again")
    if left:
        raise SystemExit(NOT_SO)


def _numbered(inbox: Inbox, seqs: list[int]) -> list[Match]:
    found = []
    for seq in seqs:
        detail = inbox.admin.message(seq)
        if detail is None:
            raise Failure(f"there is no message with number {seq}", NOT_SO)
        found.append(Match(seq, detail.type or "", detail.source, detail.status))
    return found


def _show(found: list[Match]) -> None:
    if not found:
        say("no messages match")
        return
    kinds = Counter((one.type, one.source, "in quarantine" if one.quarantined else one.status) for one in found)
    rows = [(f"{number:,}", *kind) for kind, number in kinds.most_common()]
    print_table(("messages", "type", "source", "status"), rows, right=("messages",))
