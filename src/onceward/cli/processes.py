"""`onceward run`: work until stopped, in this process or in several under a supervisor.

Invariant: SIGTERM and SIGINT stop gracefully at every moment, also while the program is still being imported: what is
running is finished or rolled back, and nothing is left noted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.target import Target
from onceward.cli.text import count, examples, visible
from onceward.errors import StoreUnavailable
from onceward.inbox import Inbox
from onceward.runtime.supervisor import Supervisor, follow_parent
from onceward.stores.migrate import masked

log = logging.getLogger("onceward")


@click.command(
    short_help="Run the handlers until stopped, in one process or several.",
    epilog=examples(
        "onceward run shop:inbox",
        "onceward run shop:inbox --processes 4 --concurrency 2",
        "onceward run shop:inbox --http 127.0.0.1:8080",
    ),
)
@click.argument("program", metavar="MODULE:ATTR")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Lanes in each process.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve the inbox's webhooks here too; loopback without HOST.")
@click.option("--child", metavar="NAME", hidden=True, help="Set by the supervisor: register under this name.")
@click.option("--parent", type=int, hidden=True, help="Set by the supervisor: stop when this process is gone.")
@click.option("--json", "as_json", is_flag=True, help="Log as JSON lines, for programs.")
def run(  # noqa: PLR0913 - each is an option
    program: str,
    *,
    processes: int,
    concurrency: int,
    http: str | None,
    child: str | None,
    parent: int | None,
    as_json: bool,
) -> None:
    """Run the handlers of an inbox until SIGTERM or Ctrl-C; what is running is finished or rolled back.

    With --processes above 1 a supervisor starts that many, replaces those that die, and gives their messages to the
    others at once. About one process per core is right; more lanes help handlers that wait for something. With --http
    this process (the supervisor, if there is one) also takes the webhooks that the program made. Logs go to stderr.
    """
    # Until the worker or the supervisor listens there is nothing to finish.
    _on_signals(lambda: sys.exit(0), "SIGTERM", "SIGINT", "SIGHUP")
    if parent is not None:
        follow_parent(parent)
    with Target(program, None, None, None).open() as inbox:
        _start_logging(as_json=as_json)
        if not len(inbox.context.registry):
            raise Failure(
                f"{program} has no handlers to run; register some with @inbox.on(...), and import their modules "
                "where the inbox is made",
                WRONG_USAGE,
            )
        if any(handler.is_async for handler in inbox.context.registry):
            inbox.store.check_async()
        with suppress(StoreUnavailable):  # then the workers wait for it
            inbox.store.check_schema()
        if processes > 1:
            _supervise(inbox, program, processes=processes, concurrency=concurrency, http=http, as_json=as_json)
            return
        _on_signals(inbox.stop, "SIGHUP")  # the other two are the inbox's own business
        with _hooks(inbox, program, http, stop=inbox.stop):
            _work(inbox, concurrency=concurrency, process=child or "")


def _work(inbox: Inbox, *, concurrency: int, process: str) -> None:
    log.info(
        "working on %s with %s and %s",
        masked(inbox.url),
        count(len(inbox.context.registry), "handler"),
        count(concurrency, "lane"),
    )
    finished = inbox.run(concurrency=concurrency, process=process)
    log.info("stopped; finished %s", count(finished, "message"))


@contextmanager
def _hooks(inbox: Inbox, program: str, http: str | None, *, stop: Callable[[], None]) -> Iterator[None]:
    """Serve the program's webhooks while the block runs, where that was asked for."""
    if http is None:
        yield
        return
    served = inbox.ingress.served
    if len(served) != 1:
        raise Failure(
            f"{program} has made webhooks {count(len(served), 'time')}, and --http serves one application; "
            'make it with inbox.webhooks({"/stripe": Stripe(secret), ...}) where the inbox is made',
            WRONG_USAGE,
        )
    from onceward.runtime.http_server import serving  # noqa: PLC0415 - its packages are an extra

    with serving(served[0], http, stop=stop, patience=inbox.settings.stop_timeout) as port:
        log.info("taking webhooks on port %d: %s", port, ", ".join(served[0].hooks.endpoints))
        yield


def _supervise(  # noqa: PLR0913 - what `run` was told
    inbox: Inbox, program: str, *, processes: int, concurrency: int, http: str | None, as_json: bool
) -> None:
    options = ["--concurrency", str(concurrency), "--parent", str(os.getpid()), *(["--json"] if as_json else [])]

    def command(name: str) -> list[str]:
        return [sys.executable, "-m", "onceward", "run", program, *options, "--child", name]

    supervisor = Supervisor(inbox.context, inbox.store, command, processes=processes)
    _on_signals(supervisor.stop, "SIGTERM", "SIGINT", "SIGHUP")
    with _hooks(inbox, program, http, stop=supervisor.stop):
        supervisor.run()
    log.info("stopped")


def _on_signals(stop: Callable[[], object], *names: str) -> None:
    for name in names:
        number = getattr(signal, name, None)  # not every system has each
        # Whoever started us with a signal ignored (nohup, a shell's background job) means it.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop())


def _start_logging(*, as_json: bool) -> None:
    """Log to stderr, unless the program has set up its own logging when it was imported."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines("%(asctime)s %(levelname)-7s [%(process)d] %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Lines(logging.Formatter):
    """Lines for people. An error may quote a message, so control characters are spelled out here too."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), lines=True)


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "onceward", {})  # which message it is about
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)
