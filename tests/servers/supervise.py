"""Runs one server as a child and outlives the test process by just long enough to clean up after it.

    python supervise.py FOLDER USER PROGRAM ARGUMENT...

Prints the server's process id, then waits. Invariant: when the server ends, this ends with it and touches
nothing else; when standard input closes first, the test process is gone (finished, interrupted or killed -9,
it makes no difference to a pipe), so the server is stopped and its folder removed.

A pipe, not PR_SET_PDEATHSIG: that one fires when the *thread* that started the server ends, which would kill
a server that a test restarts from a thread. Standard library only, so that it starts in milliseconds under
`python -I -S`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

GRACE = 5.0


def main(folder: str, user: str, *command: str) -> int:
    """Run the server until it ends or nobody is left who wants it."""
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=folder,
        user=user or None,
        group=user or None,
        extra_groups=[] if user else None,
        start_new_session=True,
    )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    abandoned = threading.Event()

    def watch() -> None:
        # os.read, not sys.stdin: a buffered reader locked by a daemon thread aborts the interpreter's exit.
        while os.read(0, 1024):
            pass
        abandoned.set()
        _end(server)

    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    if abandoned.is_set():
        # RabbitMQ's script is gone by then, and the Erlang below it is not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        _remove(folder)
    return code if code >= 0 else 128 - code


def _end(server: subprocess.Popen[bytes]) -> None:
    # The group, for initdb's children. To PostgreSQL, SIGQUIT means: stop at once, clients or not.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGQUIT)
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


def _remove(folder: str) -> None:
    """Remove the folder; a grandchild on its way out may still be writing there, so more than once."""
    deadline = time.monotonic() + GRACE
    while os.path.exists(folder) and time.monotonic() < deadline:  # noqa: PTH110
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
