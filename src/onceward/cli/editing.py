"""`onceward edit`: give a message that fails a corrected body, and run it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from onceward.admin.revisions import Revision
from onceward.cli.asking import asking, must_ask
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import only
from onceward.cli.output import heading, print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, examples, say


@click.command(
    epilog=examples(
        "onceward edit shop:inbox 17 --file fixed.json --preview",
        'onceward edit shop:inbox 17 --body \'{"order": 7, "amount": 12}\' --reason "the amount was missing" --yes',
        "onceward show shop:inbox 17 --json | jq -r .body | jq '.amount = 12' | onceward edit shop:inbox 17 --file -",
    ),
)
@on_target(rest="SEQ|ID")
@click.option("--body", metavar="TEXT", help="The corrected body.")
@click.option("--file", "file", metavar="PATH", help="The file with the corrected body; - is the standard input.")
@click.option("--out-of-order", is_flag=True, help="Also a message whose key went on without it (see unblock).")
@asking
@as_json
def edit(  # noqa: PLR0913 - the options of the command
    target: Target,
    words: list[str],
    *,
    body: str | None,
    file: str | None,
    out_of_order: bool,
    preview: bool,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Give a dead or retrying message a corrected body, and run it again with a new budget.

    Type, key and number stay, and so does its identity: a copy of the first body is a duplicate, and so is one of the
    corrected body. Both are kept. What changes is shown first, with the results that message.once has on record: those
    calls are not made again. Exit code 1 when the message is neither dead nor retrying.
    """
    given = _given(body, file)
    asks = must_ask(preview=preview, yes=yes, as_json=as_json, reason=reason)
    with target.open() as inbox:
        seq = only(inbox, words)
        found = inbox.admin.revision(seq, body=given)
        if found is None:
            raise Failure(f"there is no message with number {seq}", NOT_SO)
        if not found.is_possible:
            raise Failure(f"message {found.seq} is {found.status}; only a dead or retrying one can be edited", NOT_SO)
        if preview and as_json:
            print_json(found)
        elif not as_json:
            _show(found)
        if preview:
            return
        if asks:
            click.confirm(f"edit message {found.seq} and run it again?", abort=True)
        done = inbox.admin.edit(found.seq, body=given, reason=reason or "", out_of_order=out_of_order)
    if not done:
        raise Failure(f"message {found.seq} was changed meanwhile: {inbox.context.hint('show', found.seq)}", NOT_SO)
    if as_json:
        print_json({"edited": found.seq})
    else:
        say(f"edited: message {found.seq}; it is due")


def _given(body: str | None, file: str | None) -> bytes:
    if (body is None) == (file is None):
        raise Failure("give the corrected body with --body TEXT or --file PATH", WRONG_USAGE)
    if body is not None:
        return body.encode()
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(str(file)).read_bytes()
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}", WRONG_USAGE) from None


def _show(found: Revision) -> None:
    rows = [(path or "(the whole body)", _text(before), _text(after)) for path, before, after in found.differences]
    print_table(("field", "before", "after"), rows, cut=True)
    if found.effects:
        heading("done already, with the body before; not done again")
        calls = [(one.name, ago(one.finished_at), _text(one.result)) for one in found.effects]
        print_table(("call", "when", "result"), calls, cut=True)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
