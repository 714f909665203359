"""Where onceward's own time goes: in which module its threads are while they use the processor.

In runs of its own: whoever is looked at loses time. What C does counts for the module that called it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from bench import contenders, sqlite
from bench.drain import filled
from bench.figures import Figures
from bench.ground import Ground
from bench.race import ROOT, Unusable, ours
from bench.scale import Scale

EVERY = 0.001
_WAITING = {"threading", "selectors"}
SHOWN = 8
"""How many modules are named."""


def measure(ground: Ground, scale: Scale, figures: Figures) -> None:
    """A run of each contender whose time is Python's."""
    with ground.copy(filled(ground, "nothing", scale.messages)) as url:
        figures.profiles["drain: onceward"] = _looked_at("drain", url)
    with ground.copy() as url:
        figures.profiles["receive: onceward, 64 tasks"] = _looked_at(
            "receive_tasks", url, scale.messages, scale.callers
        )
    with ground.copy() as url:
        figures.profiles["inline: onceward"] = _looked_at("inline", url, scale.slow, 1)
    with ground.copy() as url:
        figures.profiles["direct: onceward"] = _looked_at("direct", url, scale.messages)
    with tempfile.TemporaryDirectory() as folder:
        backlog = sqlite.filled(Path(folder), scale.messages)
        figures.profiles["sqlite: onceward"] = _looked_at("drain", f"sqlite:///{backlog}")


def _looked_at(kind: str, *arguments: object) -> dict[str, float]:
    """The share of each module, in hundredths."""
    command = ours("profile", kind, *arguments)
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise Unusable(f"profile {kind}: {done.stderr.strip().splitlines()[-1:]}")
    seen: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    total = sum(seen.values())
    return {name: round(100 * count / total, 1) for name, count in Counter(seen).most_common(SHOWN)}


class _Looks:
    """Looks at whatever runs each time that the process has used the processor for a moment."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def readline(self) -> str:
        """As the input of a contender that is ready: the word to begin."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        return "go"

    def end(self) -> None:
        """No more."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        """A contender works in one thread, which may not be this one."""
        for thread, other in sys._current_frames().items():  # noqa: SLF001 - as its documentation says, for this purpose
            if thread != threading.get_ident() and _module(other) not in _WAITING:
                frame = other
        if frame is not None:
            self.seen[_module(frame)] += 1


class _Deaf(threading.Thread):
    """Python handles signals in the main thread, which does not notice what another one has caught."""

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
        super().run()


def _module(frame: FrameType) -> str:
    """The module, where it is ours; the package, where it is another's."""
    name: str = frame.f_globals["__name__"]
    if name.startswith("namedtuple_") and frame.f_back:
        return _module(frame.f_back)
    return name if name.startswith("onceward.") else name.partition(".")[0]


def main(kind: str, *arguments: str) -> None:
    """A contender, looked at from the moment it is ready."""
    looks: Any = _Looks()
    sys.stdin, threading.Thread = looks, _Deaf  # type: ignore[misc] # for the threads that are to come
    sys.setswitchinterval(1e-5)  # a look must not wait for its turn
    {kind.__name__: kind for kind in contenders.KINDS}[kind](*arguments)
    looks.end()
    print(json.dumps(looks.seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
