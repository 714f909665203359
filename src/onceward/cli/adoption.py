"""`onceward import-ids`: remember the ids of messages that were handled before onceward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from onceward.admin.adoption import Imported, Table
from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.output import console, print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say


@click.command(
    short_help="Import the ids of messages that were handled before onceward.",
    epilog=examples(
        "onceward import-ids shop:inbox --from-table processed --id-column message_id --source stripe --preview",
        "onceward import-ids shop:inbox --from-table processed --id-column message_id --source stripe \\",
        "  --seen-column created_at --where \"sender = 'stripe' AND status = 'done'\"",
    ),
)
@on_target()
@click.option(
    "--from-table", "table", required=True, metavar="TABLE", help="The table with the ids, in the inbox's own database."
)
@click.option("--source", required=True, metavar="NAME", help="The source under which copies will come.")
@click.option("--id-column", required=True, metavar="COLUMN", help="The producer's id; an index on it keeps this fast.")
@click.option("--seen-column", metavar="COLUMN", help="When it was handled. Without it, ids are kept from now on.")
@click.option("--where", metavar="SQL", help="Only rows for which this condition holds.")
@click.option(
    "--consumer", "consumers", multiple=True, metavar="NAME", help="For this consumer alone; repeatable. [default: all]"
)
@click.option("--after", metavar="ID", help="Start after this id, where an earlier import stopped.")
@click.option("--preview", is_flag=True, help="Count what would be imported; change nothing.")
@as_json
def import_ids(  # noqa: PLR0913 - each is an option
    target: Target,
    *,
    table: str,
    source: str,
    id_column: str,
    seen_column: str | None,
    where: str | None,
    consumers: Sequence[str],
    after: str | None,
    preview: bool,
    as_json: bool,
) -> None:
    """Remember the ids in a table of your own: copies of those messages are duplicates from then on.

    Small transactions beside live traffic. Importing again changes nothing, so an import that was interrupted is run
    again. An id is imported for every consumer of the inbox unless --consumer names some. Rows that were handled longer
    ago than the dedupe retention are skipped and counted.
    """
    if target.program is None and not consumers:
        raise Failure("--store needs --consumer NAME: only the program knows its consumers", WRONG_USAGE)
    columns = Table(table, id_column, seen_column, where)
    with target.open() as inbox, console(stderr=True).status("importing") as status:
        found = inbox.admin.import_ids(
            source,
            columns,
            consumers=consumers,
            after=after,
            preview=preview,
            progress=lambda so_far: status.update(f"importing: {so_far.read:,} ids, the last {so_far.last}"),
        )
    if as_json:
        print_json({**asdict(found), "preview": preview})
        return
    for line in _lines(found, source, preview=preview):
        say(line)


def _lines(found: Imported, source: str, *, preview: bool) -> list[str]:
    ids, consumers = count(found.read, "id"), ", ".join(found.consumers)
    lines = [
        f"{'would import' if preview else 'imported'}: {found.imported:,} of {ids} from {source}, for {consumers}"
        if len(found.consumers) == 1
        else f"{'would import' if preview else 'imported'}: {count(found.imported, 'row')} of {ids} from {source}, "
        f"one for each of {consumers}"
    ]
    if found.known:
        lines.append(f"known already: {found.known:,}")
    if found.too_old:
        lines.append(f"skipped: {found.too_old:,} handled longer ago than the dedupe retention")
    if found.refused:
        lines.append(f"skipped: {found.refused:,} that cannot be message ids; the first: {found.first_refused}")
    return lines
