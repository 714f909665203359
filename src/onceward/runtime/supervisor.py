"""The parent of several worker processes: starts them, replaces those that die, and takes over their messages at once.

Invariant: the messages of a process are taken over only after the parent has reaped it, so no process works on them any
more; and no child outlives its parent (`follow_parent`).
"""

from __future__ import annotations

import ctypes
import heapq
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from onceward.domain import identity
from onceward.errors import StoreError
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.steps.membership import take_over_process
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

STEADY = timedelta(seconds=10)
"""A child that lived this long did not die of its start; its replacement comes without a pause."""
FIRST_PAUSE = timedelta(seconds=0.1)
LONGEST_PAUSE = timedelta(seconds=30)
GRACE = timedelta(seconds=5)
"""How much longer than its own stop may take a child is given before it is killed."""
RETRY_SECONDS = 1.0
PARENT_CHECK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Child:
    """A started process. `rapid` counts how many before it, in its place, died soon after their start."""

    name: str
    process: subprocess.Popen[bytes]
    started: float
    rapid: int


class Supervisor:
    """Keeps a number of worker processes running until it is told to stop.

    `command` gives the command line of a child for the name that the child must register under. `environment` and
    `output` (a file descriptor) are the children's own; without them they have the parent's.
    """

    def __init__(  # noqa: PLR0913 - what to start, and how
        self,
        context: Context,
        store: Store,
        command: Callable[[str], Sequence[str]],
        *,
        processes: int,
        longest_pause: timedelta = LONGEST_PAUSE,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> None:
        self._context, self._store, self._command = context, store, command
        self._processes = processes
        self._environment, self._output = environment, output
        self._longest_pause = longest_pause.total_seconds()
        self._children: dict[str, Child] = {}
        # Unlike Queue, it may be used in a signal handler that interrupts its own get().
        self._events: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        self._restarts: list[tuple[float, int]] = []
        self._departed: dict[str, str] = {}
        self._stopping = False
        self.deaths = 0
        """How many children have ended without being asked to."""

    @property
    def pids(self) -> list[int]:
        """The children of now."""
        return [child.process.pid for child in list(self._children.values())]

    def stop(self) -> None:
        """Ask to stop; returns at once, may be called from another thread or a signal handler."""
        self._stopping = True
        self._events.put(None)

    def run(self) -> None:
        """Start the children and look after them until `stop()`; then end them, gracefully if they can."""
        # The kernel ties a child's end to the *thread* that started it: children are started in this one only.
        try:
            now = time.monotonic()
            self._restarts = [(now, 0)] * self._processes
            while not self._stopping:
                self._start_due()
                self._reap(self._patience())
                self._take_over_departed()
        finally:
            self._stopping = True
            self._end()

    def _start_due(self) -> None:
        while self._restarts and self._restarts[0][0] <= time.monotonic() and not self._stopping:
            _, rapid = heapq.heappop(self._restarts)
            self._start(rapid)

    def _start(self, rapid: int) -> None:
        name = identity.new_id()
        # A process group of its own: Ctrl-C in a terminal reaches the parent alone, which then asks each child once.
        process = subprocess.Popen(  # noqa: S603 - the command is our own
            self._command(name),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            process_group=0,
        )
        child = Child(name, process, time.monotonic(), rapid)
        self._children[name] = child
        threading.Thread(target=self._await, args=(child,), name=f"onceward-child-{process.pid}", daemon=True).start()
        log.info("process %d started", process.pid)

    def _await(self, child: Child) -> None:
        child.process.wait()
        self._events.put(child)

    def _patience(self) -> float | None:
        """How long nothing needs to be done unless something happens."""
        waits = [RETRY_SECONDS] if self._departed else []
        if self._restarts:
            waits.append(max(0.0, self._restarts[0][0] - time.monotonic()))
        return min(waits, default=None)

    def _reap(self, timeout: float | None) -> None:
        """Wait for an event; if it is a death, note what is left to do about it."""
        try:
            child = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        if child is None:
            return
        del self._children[child.name]
        cause = cause_of_death(child.process)
        # Also after an exit code of 0: a handler may have called os._exit(0). A child that deregistered left nothing.
        self._departed[child.name] = cause
        if self._stopping:
            return
        self.deaths += 1
        lived = time.monotonic() - child.started
        rapid = 0 if lived >= STEADY.total_seconds() else child.rapid + 1
        pause = min(FIRST_PAUSE.total_seconds() * 2 ** min(rapid - 1, 20), self._longest_pause) if rapid else 0.0
        heapq.heappush(self._restarts, (time.monotonic() + pause, rapid))
        log.warning("%s; a new one is started%s", cause, f" in {pause:.1f} s" if pause else "")

    def _take_over_departed(self) -> None:
        """Give the messages of dead children to the others; what the database refuses now is tried again soon."""
        for name, cause in list(self._departed.items()):
            try:
                taken = perform(self._store, lambda n=name, c=cause: take_over_process(self._context, n, c))  # type: ignore[misc] # mypy cannot infer lambda defaults
            except StoreError as error:
                log.warning("the messages of a dead process could not be taken over yet, retrying: %s", error)
                return
            del self._departed[name]
            if taken:
                log.warning("%s without deregistering; its messages were taken over", cause)
                self._store.notify()

    def _end(self) -> None:
        """Ask every child to stop, wait, kill those that do not; none is left behind, and no message of theirs."""
        patience = self._context.settings.stop_timeout + GRACE
        for child in self._children.values():
            child.process.terminate()
        deadline = time.monotonic() + patience.total_seconds()
        while self._children and (left := deadline - time.monotonic()) > 0:
            self._reap(left)
        for child in self._children.values():
            log.error("process %d did not stop within %g s and is killed", child.process.pid, patience.total_seconds())
            child.process.kill()
        while self._children:
            self._reap(None)
        self._take_over_departed()


def cause_of_death(process: subprocess.Popen[bytes]) -> str:
    """What is known about the end of a process, as the beginning of a sentence."""
    who = f"process {process.pid} on {socket.gethostname()}"
    code = process.returncode
    if code >= 0:
        return f"{who} exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "no standard signal"
    return f"{who} was killed by signal {-code} ({name})"


def follow_parent(parent: int) -> None:
    """In a child: get SIGTERM when the process `parent` is gone, however it went."""
    if os.name != "posix":
        return
    if sys.platform == "linux":  # at once; elsewhere the check below notices soon
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    threading.Thread(target=_watch_parent, args=(parent,), name="onceward-parent", daemon=True).start()


def _watch_parent(parent: int) -> None:
    # An orphan gets another parent, also when that happened before this process could ask for the signal.
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
