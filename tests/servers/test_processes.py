"""What is known about processes is the same by /proc and by `ps`, which macOS has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests import processes
from tests.waiting import wait_until


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_a_child_is_seen_stopped_dead_and_gone(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert processes.parents()[child.pid] == os.getpid()
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: processes.state(child.pid) == "T")
        child.kill()
        wait_until(lambda: processes.state(child.pid) == "Z")
    assert processes.state(child.pid) == ""


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_a_child_dies_with_its_parent(platform: str) -> None:
    program = (
        "import os, sys, time\n"
        f"sys.platform = {platform!r}\n"
        "from tests import processes\n"
        "parent, child = os.getpid(), os.fork()\n"
        "if child == 0:\n"
        "    processes.die_with(parent)\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: processes.state(child) in ("", "Z"), message="the child to end")
