"""`onceward unsubscribe`: a consumer that no program runs any more gets no further messages."""

from __future__ import annotations

import click

from onceward.cli.asking import asking, must_ask
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say


@click.command(
    epilog=examples(
        "onceward unsubscribe shop:inbox old-mailer --preview",
        'onceward unsubscribe shop:inbox old-mailer order.paid --reason "replaced by mailer"',
        'onceward unsubscribe --store sqlite:///shop.db old-mailer --discard --reason "replaced by mailer" --yes',
    ),
)
@on_target(rest="CONSUMER [TYPE]")
@click.option(
    "--discard", is_flag=True, help="Also discard its unfinished messages; without this they stop the command."
)
@asking
@as_json
def unsubscribe(  # noqa: PLR0913 - the options of the command
    target: Target, words: list[str], *, discard: bool, preview: bool, reason: str | None, yes: bool, as_json: bool
) -> None:
    """Unsubscribe a consumer from a type, or from all of its types.

    Messages that arrive afterwards are not stored for it. Finished ones stay known. A program that registers a handler
    for the consumer subscribes it again, so stop it first. Exit code 1 when there is nothing to unsubscribe.
    """
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 - CONSUMER [TYPE]
        raise Failure(
            "name the consumer, and a type if only that is meant, for example: "
            'onceward unsubscribe shop:inbox old-mailer order.paid --reason "replaced by mailer"',
            WRONG_USAGE,
        )
    asks = must_ask(preview=preview, yes=yes, as_json=as_json, reason=reason)
    consumer, kind = words[0], (words[1] if len(words) > 1 else None)
    with target.open() as inbox:
        found = inbox.admin.subscriptions(consumer, kind)
        if not found:
            raise Failure(f"consumer {consumer!r} has no such subscription", NOT_SO)
        if preview and as_json:
            print_json({"found": [{"type": one.type, "unfinished": one.unfinished} for one in found]})
        elif not as_json:
            rows = [(one.type, f"{one.unfinished:,}") for one in found]
            print_table(("type", "unfinished messages"), rows, right=("unfinished messages",))
        if preview:
            return
        if asks:
            click.confirm(f"unsubscribe {consumer} from {count(len(found), 'type')}?", abort=True)
        discarded = inbox.admin.unsubscribe(consumer, kind, discard=discard, reason=reason or "")
    if as_json:
        print_json({"unsubscribed": [one.type for one in found], "discarded": discarded})
    else:
        say(f"unsubscribed: {count(len(found), 'type')}; discarded: {count(discarded, 'message')}")
