"""`onceward dashboard`: serve the dashboard of an inbox, on this machine alone unless there are credentials."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.target import Target, on_target
from onceward.cli.text import examples, say

VARIABLE = "ONCEWARD_DASHBOARD_CREDENTIALS"
PATIENCE = timedelta(seconds=5)


@click.command(
    short_help="Serve the dashboard in a browser.",
    epilog=examples(
        "onceward dashboard shop:inbox --port 8090",
        "onceward dashboard shop:inbox --host 0.0.0.0 --credentials people.txt --behind-tls",
        "onceward dashboard --store sqlite:///shop.db",
        "onceward dashboard shop:inbox --also billing=billing:inbox",
    ),
)
@on_target()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help="The port; 0 for any that is free."
)
@click.option(
    "--credentials",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Lines of NAME ROLE SECRET; or set {VARIABLE}. Roles: viewer, reader, operator.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="NAME=MODULE:ATTR",
    help="Another inbox, under this name in the paths; may be given again. The first has its service as its name.",
)
@click.option("--behind-tls", is_flag=True, help="A proxy in front speaks HTTPS: other machines may reach HOST.")
def dashboard(  # noqa: PLR0913 - each is an option
    target: Target, *, host: str, port: int, credentials: Path | None, also: Sequence[str], behind_tls: bool
) -> None:
    """Serve the dashboard until Ctrl-C.

    Without credentials it is read-only, and only this machine can reach it. With them, people sign in: a viewer sees
    numbers and statuses, a reader also payloads, an operator also changes things. A HOST that other machines can reach
    is refused without credentials, and without --behind-tls: secrets must not travel unencrypted.
    """
    from onceward.dashboard import Credential, Dashboard  # noqa: PLC0415 - its packages are an extra
    from onceward.runtime.http_server import serving  # noqa: PLC0415 - the same

    text = credentials.read_text() if credentials else os.environ.get(VARIABLE, "").replace(",", "\n")
    people = Credential.parse(text)
    if not is_loopback(host):
        if not people:
            raise Failure(
                f"{host} can be reached from other machines, and no sign-in would be needed: add --credentials FILE "
                f"(or set {VARIABLE}), or listen on 127.0.0.1",
                WRONG_USAGE,
            )
        if not behind_tls:
            raise Failure(
                f"{host} can be reached from other machines, and secrets would travel unencrypted: put a proxy that "
                "speaks HTTPS in front and add --behind-tls, or listen on 127.0.0.1",
                WRONG_USAGE,
            )
    logging.basicConfig(level=logging.WARNING)
    with ExitStack() as opened:
        inbox = opened.enter_context(target.open())
        others = {name: opened.enter_context(other.open()) for name, other in map(_named, also)}
        for one in (inbox, *others.values()):
            one.store.check_schema()
        shown_inboxes = {inbox.context.service: inbox, **others} if others else inbox
        app = Dashboard(
            shown_inboxes, credentials=people, anonymous=None if people else "reader", behind_tls=behind_tls
        )
        stopped = threading.Event()
        for name in ("SIGINT", "SIGTERM"):
            signal.signal(getattr(signal, name), lambda *_: stopped.set())
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with serving(app, address, stop=stopped.set, patience=PATIENCE) as listening:
            shown = f"[{host}]" if ":" in host else host
            say(f"dashboard of {inbox.context.service}: http://{shown}:{listening}/")
            stopped.wait()


def _named(word: str) -> tuple[str, Target]:
    """Another inbox, and its name."""
    name, _, program = word.partition("=")
    if not (name and ":" in program):
        raise Failure(f"--also {word}: give NAME=MODULE:ATTR, for example --also billing=billing:inbox", WRONG_USAGE)
    return name, Target(program)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
