"""`onceward run`: work until stopped, in this process or in several under a supervisor.

Invariant: SIGTERM and SIGINT stop gracefully at every moment, also while the program is still being imported: what is
running is finished or rolled back, and nothing is left claimed.
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
from pathlib import Path

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.launch import Launch
from onceward.cli.target import Target
from onceward.cli.text import count, examples, visible
from onceward.domain.selection import selection_of
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
        "onceward run shop:inbox --only invoice.wanted --concurrency 8",
        "onceward run shop:inbox --reload",
    ),
)
@click.argument("program", metavar="[MODULE:ATTR]", required=False)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Worker threads in each process."
)
@click.option("--only", "only", multiple=True, metavar="TYPE", help="Run messages of this type alone; repeatable.")
@click.option("--except", "exclude", multiple=True, metavar="TYPE", help="Run all types but this one; repeatable.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve the inbox's webhooks, too; on 127.0.0.1 without HOST.")
@click.option("--reload", is_flag=True, help="For development: restart when a .py file changes, log error texts.")
@click.option("--child", metavar="NAME", hidden=True, help="Set by the supervisor: register under this name.")
@click.option("--parent", type=int, hidden=True, help="Set by the supervisor: stop when this process is gone.")
@click.option("--json", "as_json", is_flag=True, help="Log as JSON lines, for programs.")
def run(  # noqa: PLR0913 - each is an option
    program: str | None,
    *,
    processes: int,
    concurrency: int,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    http: str | None,
    reload: bool,
    child: str | None,
    parent: int | None,
    as_json: bool,
) -> None:
    """Run the handlers of an inbox until SIGTERM or Ctrl-C; what is running is finished or rolled back.

    With --processes above 1 a supervisor starts that many, replaces those that die, and gives their messages to the
    others at once. About one process per core is right; more worker threads help handlers that wait for something.
    With --only or --except these processes run a part of the types; others have to run the rest.
    With --http this process (the supervisor, if there is one) also serves the webhooks that the program defines. With
    --reload it restarts after every change of a .py file below the current folder. Logs go to stderr.
    """
    # Until the worker or the supervisor listens there is nothing to finish.
    _on_signals(lambda: sys.exit(0), "SIGTERM", "SIGINT", "SIGHUP")
    if parent is not None:
        follow_parent(parent)
    if reload:
        _start_logging(as_json=as_json)
        _reload()
        return
    with Target.given(program, None, None, None).program_inbox() as (name, inbox):
        _start_logging(as_json=as_json)
        if not len(inbox.context.registry):
            raise Failure(
                f"{name} has no handlers to run; register some with @inbox.on(...), and import their modules "
                "where the inbox is made",
                WRONG_USAGE,
            )
        selection_of("run", only, exclude, inbox.context.registry.types)
        if any(handler.is_async for handler in inbox.context.registry):
            inbox.store.check_async()
        with suppress(StoreUnavailable):  # then the workers wait for it
            inbox.store.make_missing()
            inbox.store.check_schema()
        if processes > 1:
            options = ["--concurrency", str(concurrency), *(["--json"] if as_json else [])]
            options += [word for one in only for word in ("--only", one)]
            options += [word for one in exclude for word in ("--except", one)]
            _supervise(inbox, name, processes=processes, options=options, http=http)
            return
        _on_signals(inbox.stop, "SIGHUP")  # the other two are the inbox's own business
        with _hooks(inbox, name, http, stop=inbox.stop):
            _work(inbox, concurrency=concurrency, process=child or "", only=only, exclude=exclude)


def _reload() -> None:
    """Run this very command without --reload, again after every change of the program."""
    from onceward.cli.reloading import Reloader  # noqa: PLC0415 - for development

    launch = Launch.current()
    words = [word for word in launch.words if word != "--reload"]
    reloader = Reloader([*launch.command(), *words, "--parent", str(os.getpid())], Path.cwd())
    _on_signals(reloader.stop, "SIGTERM", "SIGINT", "SIGHUP")
    reloader.run()


def _work(inbox: Inbox, *, concurrency: int, process: str, only: tuple[str, ...], exclude: tuple[str, ...]) -> None:
    part = "".join((f", only {', '.join(only)}" if only else "", f", except {', '.join(exclude)}" if exclude else ""))
    log.info(
        "working on %s with %s and %s%s",
        masked(inbox.url),
        count(len(inbox.context.registry), "handler"),
        count(concurrency, "worker thread"),
        part,
    )
    finished = inbox.run(concurrency=concurrency, process=process, only=only, exclude=exclude)
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
            f"{program} defines {len(served)} applications with webhooks, and --http serves one. Define all endpoints "
            "in one inbox.webhooks({...}), or drop --http"
            if served
            else f'{program} defines no webhooks. Add inbox.webhooks({{"/stripe": Stripe(secret)}}) where the inbox is '
            "made, or drop --http",
            WRONG_USAGE,
        )
    from onceward.runtime.http_server import serving  # noqa: PLC0415 - its packages are an extra

    with serving(served[0], http, stop=stop, patience=inbox.settings.stop_timeout) as port:
        log.info("serving webhooks on port %d: %s", port, ", ".join(served[0].hooks.endpoints))
        yield


def _supervise(inbox: Inbox, program: str, *, processes: int, options: list[str], http: str | None) -> None:
    again = Launch.current().command()
    mine = ["--parent", str(os.getpid())]

    def command(name: str) -> list[str]:
        return [*again, "run", program, *options, *mine, "--child", name]

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
