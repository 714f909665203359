"""`onceward prove`: run the handler of a stored message through duplicates, deaths and lost connections."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from onceward.cli.asking import must_ask, preview_option, yes_option
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import only
from onceward.cli.output import console, print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say
from onceward.inbox import Inbox
from onceward.stores.migrate import masked
from onceward.testing.report import Report
from onceward.testing.stored import check_disposable, on_copy, prove_stored, stored_message


@click.command(
    short_help="Prove that a message's handler takes effect exactly once, through kills and lost connections.",
    epilog=examples(
        "onceward prove shop:inbox 17",
        "onceward prove shop:inbox 17 --result charge='\"ch_1\"' --ignore orders.updated_at",
        "DATABASE_URL=postgresql://localhost/shop_test onceward prove shop:inbox 17 \\\n"
        "    --from postgresql://db/shop --yes",
        "onceward prove shop:inbox 17 --json | jq .causes",
    ),
)
@on_target(rest="SEQ|ID")
@click.option("--from", "original", metavar="URL", help="Read the message from this database; it is only read.")
@click.option("--disposable", is_flag=True, help="The program's own database is for tests: use it.")
@click.option("--result", "results", multiple=True, metavar="NAME=JSON", help="The result of message.once(NAME, ...).")
@click.option("--ignore", multiple=True, metavar="TABLE[.COLUMN]", help="A table or column that is not compared.")
@preview_option
@yes_option
@as_json
def prove(  # noqa: PLR0913 - each says on what and what with
    target: Target,
    words: list[str],
    *,
    original: str | None,
    disposable: bool,
    results: Sequence[str],
    ignore: Sequence[str],
    preview: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run the handler of a stored message about 40 times: delivered twice, killed, its connection cut, its lease lost.

    After each case every table is compared with a run without faults. Exit code 1 when an effect was lost or doubled.

    On SQLite it works on a copy of the file. On a server it works on the program's own database and puts its rows
    back, so that must be one for tests: configure the program for it and name the real one with --from, or add
    --disposable.

    Nothing is published. Calls through message.once are not made, their recorded results are used. Other connections
    and programs that the handler starts are refused, except those that a driver written in C makes by itself.
    """
    if not target.program:
        raise Failure(
            "--store has no handlers; name the program instead, for example: onceward prove shop:inbox 17", WRONG_USAGE
        )
    recorded = dict(map(_result, results))
    with target.open() as inbox, _opened(original, inbox) as source:
        seq = only(source or inbox, words)
        try:
            detail = stored_message(source or inbox, seq)
        except LookupError as error:
            raise Failure(str(error.args[0]), NOT_SO) from None
        copies = inbox.store.dialect == "sqlite"
        if not copies:
            _check_server(inbox, source, disposable=disposable)
        asks = must_ask(preview=preview, yes=yes or copies, as_json=as_json)
        what = f"{detail.type} #{seq} ({detail.id} from {detail.source}) for {detail.consumer}"
        where = "a copy of " if copies else ""
        say(f"{what}, on {where}{masked(inbox.url)}", error=True)
        if preview:
            return
        if asks:
            click.confirm("run its handler there about 40 times, and put all rows back after each case?", abort=True)
        with on_copy(inbox) if copies else nullcontext(), _quiet(), console(stderr=True).status("proving"):
            report = prove_stored(inbox, detail, results=recorded, ignore=ignore)
    if as_json:
        print_json(_as_data(seq, report))
    else:
        say(str(report))
        _advise(report, detail.status)
    if not report.ok:
        raise SystemExit(NOT_SO)


@contextmanager
def _opened(url: str | None, inbox: Inbox) -> Iterator[Inbox | None]:
    """The inbox that the message comes from, where that is another."""
    if url is None:
        yield None
        return
    with Inbox(url, prefix=inbox.context.prefix, service=inbox.context.service) as source:
        yield source


def _check_server(inbox: Inbox, source: Inbox | None, *, disposable: bool) -> None:
    if source is None and not disposable:
        raise Failure(
            f"{masked(inbox.url)} is on a server: a proof works on that very database, and puts its rows back after "
            "each case. Configure the program for a database of tests and name the real one with --from URL; or, if "
            "this one is for tests, add --disposable",
            WRONG_USAGE,
        )
    check_disposable(inbox, source)


def _result(word: str) -> tuple[str, Any]:
    name, _, text = word.partition("=")
    try:
        return name, json.loads(text)
    except ValueError:
        raise Failure(f"--result {word!r}: NAME=JSON is needed, for example charge='\"ch_1\"'", WRONG_USAGE) from None


def _as_data(seq: int, report: Report) -> Mapping[str, Any]:
    return {
        "ok": report.ok,
        "seq": seq,
        "handler": report.handler,
        "cases": len(report.cases),
        "failures": len(report.failures),
        "causes": [
            {
                "why": cause.why,
                "kinds": cause.kinds,
                "cases": [{"name": case.name, "mode": case.mode, "detail": case.detail} for case in cause.cases],
            }
            for cause in report.causes
        ],
        "statements": [str(statement) for statement in report.statements],
        "notes": report.notes,
        "not_looked_at": report.unseen,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Log no failures: here they are made on purpose."""
    log = logging.getLogger("onceward")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def _advise(report: Report, status: str) -> None:
    """What to do next."""
    if any(case.kind == "unrepeatable" for case in report.failures):
        say("Leave out columns that a clock or a random number fills: add --ignore TABLE.COLUMN")
    elif any("no result on record" in cause.why for cause in report.causes):
        say("Give the result of a call that was never made: add --result NAME=JSON")
    elif len(report.cases) == 1 and status == "done":
        say("The message is done, so its effect is in the tables: prove one that waits, or use a backup from before it")
    elif report.unseen:
        say("A test with prove_exactly_once can look at more: see docs/testing.md")
