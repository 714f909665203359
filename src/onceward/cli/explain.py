"""`onceward explain`: one message as a timeline."""

from __future__ import annotations

from collections.abc import Callable

import click
from rich.text import Text

from onceward.admin.timeline import Event, Explanation
from onceward.cli.failure import NOT_SO, Failure
from onceward.cli.messages import sought
from onceward.cli.output import STYLES, console, heading, print_json, styled
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say, visible

KINDS = {
    "failure": "red",
    "crash": "bold red",
    "mismatch": "yellow",
    "duplicate": "dim",
    "finish": "green",
    "next": "bold",
}


@click.command(
    short_help="Show everything that happened to a message, in order of time.",
    epilog=examples(
        "onceward explain shop:inbox 17",
        "onceward explain shop:inbox evt_1 --tracebacks",
        "onceward explain shop:inbox --source stripe --id evt_1",
    ),
)
@on_target(rest="[SEQ|ID]")
@click.option("--source", metavar="NAME", help="With --id: find the message by its producer's id.")
@click.option("--id", "id_", metavar="ID", help="With --source: the producer's message id.")
@click.option("--tracebacks", is_flag=True, help="With the traceback of every failed attempt.")
@as_json
def explain(  # noqa: PLR0913 - which one, and how
    target: Target, words: list[str], *, source: str | None, id_: str | None, tracebacks: bool, as_json: bool
) -> None:
    """Show everything that happened to a message: deliveries with their duplicates, attempts, calls, what it sent.

    Exit code 1 when there is no such message. With --json it is a list: one for each consumer that has the id.
    """
    with target.open() as inbox:
        seqs = sought(inbox, words, source, id_)
        told = [explanation for seq in seqs if (explanation := inbox.admin.explain(seq))]
    if not told:
        raise Failure(f"there is no message with number {seqs[0]}", NOT_SO)
    if as_json:
        print_json(told)
        return
    for explanation in told:
        _print(explanation, inbox.context.hint, tracebacks=tracebacks)


def _print(explanation: Explanation, hint: Callable[..., str], *, tracebacks: bool) -> None:
    detail = explanation.message
    heading(f"message {detail.seq}")
    out = console()
    about = f"{detail.type or '(body not kept)'} from {detail.source}, id {detail.id}, for {detail.consumer}"
    out.print(styled(about), styled(detail.status, STYLES.get(detail.status, "")), soft_wrap=True)
    for event in explanation.events:
        out.print(_line(event), soft_wrap=True)
        if tracebacks and event.detail:
            say(visible(event.detail.rstrip(), lines=True))
    if detail.history:
        say(f"Others that failed in this way: {hint('list', '--error', detail.history[-1].fingerprint)}")
    if explanation.same_id:
        say("Other messages with this id: " + ", ".join(map(str, explanation.same_id)))


def _line(event: Event) -> Text:
    when = f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] if event.at else "now"
    other = f"  -> message {event.seq}" if event.seq else ""
    what = (f"{event.what}: {event.error}" if event.error else event.what).partition("\n")[0]
    return Text.assemble(
        (f"{when:23}  ", "dim"), (f"{event.kind:9}  ", KINDS.get(event.kind, "")), visible(what + other)
    )
