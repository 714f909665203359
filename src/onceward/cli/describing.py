"""`onceward asyncapi`: the messages that an inbox accepts, for the teams that send to it."""

from __future__ import annotations

import json

import click

from onceward.admin.asyncapi import document
from onceward.cli.target import Target, on_target
from onceward.cli.text import examples


@click.command(
    short_help="Print the messages that the inbox accepts, as an AsyncAPI document.",
    epilog=examples(
        "onceward asyncapi shop:inbox > asyncapi.json",
        "onceward asyncapi shop:inbox --title Shop --api-version 2.1.0",
        "onceward asyncapi shop:inbox | jq '.components.messages | keys'",
    ),
)
@on_target()
@click.option("--title", metavar="TEXT", help="The title of the document. [default: the service's name]")
@click.option("--api-version", metavar="TEXT", help="Its version. [default: the code's version, else 0]")
@click.option("--json", "_as_json", is_flag=True, help="No effect: the document is JSON anyway.")
def asyncapi(target: Target, *, title: str | None, api_version: str | None, _as_json: bool) -> None:
    """Print an AsyncAPI 3 document: the types and versions that handlers accept, with the JSON schemas of their models.

    What handlers send is not in it.
    """
    with target.program_inbox() as (_, inbox):
        click.echo(json.dumps(document(inbox.context, title=title, version=api_version), indent=2))
