"""How a program starts and ends: `import onceward` brings what receiving and handling need, the rest comes when used.

Invariant: what is named here is loaded by nothing that every program does; a time would depend on the machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from onceward.deferred import Deferred

FOR_SOME = {
    "onceward.admin.alerts",
    "onceward.retention.archive",
    "onceward.blobs.protocol",
    "onceward.retention.maintenance",
    "onceward.admin.doctor",
    "onceward.admin.guarantees",
    "onceward.integrations.idempotency",
    "onceward.observability.prometheus",
    "onceward.runtime.relay",
    "onceward.retention.replay",
    "onceward.admin.messages",
    "onceward.models",
    "onceward.brokers",
    "onceward.sinks",
    "onceward.polls",
    "onceward.runtime.spool",
    "onceward.steps.archive",
    "onceward.steps.erase",
    "onceward.steps.operate",
    "onceward.stores.postgres",
    "onceward.stores.redis",
    "onceward.stores.recording",
    "onceward.stores.sqlite",
    "onceward.runtime.supervisor",
    "onceward.admin.overview",
    "onceward.observability.opentelemetry",
    "onceward.testing",
    "onceward.admin.timeline",
    "onceward.admin.dry_run",
    "onceward.webhooks",
}
"""For people, operators, strangers and disks; each store where it is opened."""
OF_PYTHON = {"asyncio", "concurrent.futures", "signal", "socket", "ssl", "subprocess", "uuid"}
"""Of Python, for programs that await, run until a signal, or name their host; together longer than all the rest."""

_LOADED = """
import json, sys
before = set(sys.modules)
from onceward import Inbox
print(json.dumps([*set(sys.modules) - before]))
"""
_STARTED = """
import json, sys
before = set(sys.modules)
from onceward import Inbox
with Inbox("sqlite://") as inbox:
    inbox.migrate()
    inbox.on("greeting")(lambda message, tx: None)
    inbox.receive(source="start", id="1", type="greeting")
    assert inbox.drain() == 1
print(json.dumps([*set(sys.modules) - before]))
"""
_HELPED = """
import json, sys
from onceward.cli.app import application
application(["--help"], standalone_mode=False)
print(json.dumps([*sys.modules]))
"""


def loaded(program: str) -> set[str]:
    """The modules that a fresh interpreter has loaded at the end of a program."""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(answer.stdout.splitlines()[-1]))


def test_import_brings_only_what_every_program_needs() -> None:
    found = loaded(_LOADED)
    assert not found & (FOR_SOME | OF_PYTHON)
    assert {"onceward.steps.receive", "onceward.steps.handle"} <= found, "the program did not import the inbox"
    foreign = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names) - {"onceward", "org"}
    assert not foreign, "the core works with the standard library alone"


def test_handling_a_message_brings_nothing_of_the_rest() -> None:
    found = loaded(_STARTED)
    assert found & FOR_SOME == {"onceward.stores.sqlite"}
    assert found & OF_PYTHON <= {"socket"}, "its process has a host"


def test_help_brings_no_command_and_nothing_that_draws() -> None:
    found = loaded(_HELPED)
    assert "click" in found
    assert not found & (FOR_SOME | {"rich", "onceward.demo.show", "onceward.cli.status", "onceward.cli.processes"})


def test_what_is_for_some_is_there() -> None:
    assert all(map(find_spec, FOR_SOME | OF_PYTHON)), "a name that nothing has can never be loaded"


def test_what_was_used_of_python_is_kept() -> None:
    """So that a loop that goes through it for every message pays once."""
    stand_in = Deferred("asyncio")
    assert stand_in.Future is asyncio.Future
    assert vars(stand_in) == {"_name": "asyncio", "Future": asyncio.Future}
    with pytest.raises(AttributeError, match="nothing_of_it"):
        _ = stand_in.nothing_of_it


def test_a_program_ends_without_closing_its_inbox(store_url: str) -> None:
    """Whatever threads and pools `areceive` has left, they do not keep the process."""
    lines = (
        "import asyncio, sys",
        "from onceward import Inbox",
        "inbox = Inbox(sys.argv[1])",
        "inbox.migrate()",
        "asyncio.run(inbox.areceive(source='s', id='m1', type='t', data={}))",
        "inbox.receive(source='s', id='m2', type='t', data={})",
        "print('over')",
    )
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(lines), store_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("over\n", 0), done.stderr


def test_on_windows_one_sentence_says_what_to_do() -> None:
    """Its files and signals are others; the first import says so, before anything else can fail there."""
    program = "import os; os.name = 'nt'; import onceward"
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    last = "ImportError: onceward needs a POSIX system, such as Linux. On Windows, use it in WSL or a container."
    # Behind it, what measures the coverage may fail itself, on a system that is none.
    assert (ran.returncode, ran.stderr.splitlines().count(last)) == (1, 1)
