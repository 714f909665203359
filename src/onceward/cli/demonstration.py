"""`onceward demo`: the demo (`onceward.demo`) with options, as JSON, or beside its dashboard."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import click

from onceward.cli.failure import NOT_SO
from onceward.cli.output import print_json
from onceward.cli.target import as_json
from onceward.cli.text import examples, say
from onceward.demo.screen import performed
from onceward.demo.show import FILE, Beside, Plan, play
from onceward.inbox import Inbox

PORT = 8090
PATIENCE = timedelta(seconds=5)


@click.command(
    epilog=examples(
        "onceward demo",
        "onceward demo --dashboard",
        "onceward demo --messages 20000 --kills 30",
        "onceward demo --keep /tmp/shop     (and then: onceward status --store sqlite:////tmp/shop/demo.db)",
    ),
)
@click.option("--messages", type=click.IntRange(min=10), default=2000, show_default=True, help="How many messages.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Workers on each side.")
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="How often a worker is killed with kill -9, on each side.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Another seed: other messages, duplicates and kills."
)
@click.option("--keep", type=click.Path(path_type=Path), metavar="FOLDER", help="Keep the databases in this folder.")
@click.option("--dashboard", is_flag=True, help="Serve the dashboard, too, also after the demo until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="The port of the dashboard."
)
@as_json
def demo(  # noqa: PLR0913 - each is an option
    *,
    messages: int,
    processes: int,
    kills: int,
    seed: int,
    keep: Path | None,
    dashboard: bool,
    port: int,
    as_json: bool,
) -> None:
    """Watch a careless consumer and onceward take the same deliveries, through duplicates, kill -9 and poison.

    Senders deliver payments, three in ten of them twice, from two processes. Two consumers book them: one checks,
    works, and then remembers; the other is onceward. Workers of both are killed on the way. Two messages are poison:
    one is rejected, one kills the worker that handles it. At the end the tables are counted. Exit code 1 when
    onceward lost or doubled a payment.
    """
    plan = Plan(messages=messages, processes=processes, kills=kills, seed=seed)
    with _folder(keep) as folder:
        beside: Beside = _dashboard(port) if dashboard else nullcontext
        if as_json:
            result = play(plan, folder, lambda scene: None, beside)  # noqa: ARG005 - not shown
            print_json(
                dataclasses.asdict(result.verdict) | {"holds": result.verdict.holds, "careless": result.careless}
            )
        else:
            kept = (lambda: say(f"Kept: onceward status --store sqlite:///{(keep / FILE).resolve()}")) if keep else None
            result = performed(plan, folder, beside, last=kept)
    if not result.verdict.holds:
        raise SystemExit(NOT_SO)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as folder:
        yield Path(folder)


def _dashboard(port: int) -> Callable[[Inbox], contextlib.AbstractContextManager[None]]:
    """What serves the dashboard while the demo runs, and after it until Ctrl-C."""
    from onceward.dashboard import Dashboard  # noqa: PLC0415 - its packages are an extra
    from onceward.runtime.http_server import serving  # noqa: PLC0415 - the same

    @contextmanager
    def beside(inbox: Inbox) -> Iterator[None]:
        stopped = threading.Event()
        app = Dashboard(inbox, anonymous="reader")
        with serving(app, f"127.0.0.1:{port}", stop=stopped.set, patience=PATIENCE) as listening:
            say(f"dashboard: http://127.0.0.1:{listening}/")
            yield
            for name in (signal.SIGINT, signal.SIGTERM):
                signal.signal(name, lambda *_: stopped.set())
            say(f"The demo is over. The dashboard goes on: http://127.0.0.1:{listening}/  (Ctrl-C ends it)")
            stopped.wait()

    return beside
