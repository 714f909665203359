"""`onceward migrate`: create or update the tables, or print them as SQL."""

from __future__ import annotations

import click

from onceward.cli.output import print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say
from onceward.stores.migrate import masked


@click.command(
    short_help="Create or update the tables, or print them as SQL.",
    epilog=examples(
        "onceward migrate shop:inbox",
        "onceward migrate --store postgresql://shop@localhost/shop",
        "onceward migrate shop:inbox --print > onceward.sql",
    ),
)
@on_target()
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of running it; needs no database.")
@as_json
def migrate(target: Target, *, only_print: bool, as_json: bool) -> None:
    """Create or update onceward's tables. Safe to repeat, and safe when two do it at once."""
    with target.open() as inbox:
        if only_print:
            sql = inbox.migration_sql()
            print_json({"sql": sql}) if as_json else click.echo(sql, nl=False)
            return
        applied, newer = inbox.migrate(), inbox.store.check_schema()
        if as_json:
            print_json({"applied": applied, "newer": newer})
        elif applied:
            say(f"{masked(inbox.url)}: applied {', '.join(applied)}")
        elif newer:
            names = ", ".join(newer)
            what = "nothing to do; the tables are newer than this onceward, which works with them"
            say(f"{masked(inbox.url)}: {what}: {names}")
        else:
            say(f"{masked(inbox.url)}: up to date, nothing to do")
