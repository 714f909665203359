"""How far a message walks: which functions of which files it passes through, seen with a profile hook.

    make hops           # print both walks, and renew the figures in CONTRIBUTING.md and docs/architecture.md

Two ways are walked. `receive`: a message of a single caller, in a process that has received others before. A drained
message: from the claim that brings it to the commit of what its handler did, in a worker thread that has run
before. It is alone in its claim and in its transaction, which is the longest way: in a full group most of it is shared.

A change of file is where the next function that is entered stands in another file than the one before. Functions are
entered once for each call, also generators; what Python makes of comprehensions is no function of ours. The clock of
the inbox stands still, so that every walk is the same.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import onceward
from onceward import Inbox
from tests import tree

ROOT = Path(__file__).parents[1]
PACKAGE = Path(onceward.__file__).parent
CONTRIBUTING, ARCHITECTURE = ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- hops: made by `make hops` -->", "<!-- end of hops -->"
GROUP = 100
"""How many messages share a transaction in the walk of a full group."""
WARM = 3
"""How many messages a worker thread has handled, one after another, before it is looked at."""
_NOT_OURS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}


class Entered(NamedTuple):
    """A function that was entered."""

    file: str
    function: str


class Walk:
    """The functions of onceward that are entered, in their order."""

    def __init__(self) -> None:
        self.entered: list[Entered] = []
        self._generators: set[FrameType] = set()

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or code.co_name in _NOT_OURS or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        if code.co_flags & 0x20:  # a generator: also called whenever it goes on
            if frame in self._generators:
                return
            self._generators.add(frame)
        self.entered.append(Entered(code.co_filename[len(str(PACKAGE)) + 1 :], code.co_qualname))

    def of(self, call: Callable[[], Any]) -> Walk:
        """With the walk of a call."""
        sys.setprofile(self.hook)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self

    @property
    def functions(self) -> int:
        """How many functions are entered, each counted once."""
        return len(set(self.entered))

    @property
    def files(self) -> list[str]:
        """The files in the order in which they are first entered."""
        return list(dict.fromkeys(each.file for each in self.entered))

    @property
    def stays(self) -> list[str]:
        """The file of each stay in one."""
        files = [each.file for each in self.entered]
        return [file for file, before in zip(files, ["", *files], strict=False) if file != before]

    @property
    def changes(self) -> int:
        """How often the next function stands in another file."""
        return len(self.stays) - 1

    def lines(self) -> Iterator[str]:
        """For people: each stay in a file with the functions that are entered in it."""
        file = ""
        for each in self.entered:
            yield f"{'' if each.file == file else each.file:36} {each.function}"
            file = each.file


def receiving(url: str) -> Walk:
    """The walk of `inbox.receive(...)`."""
    with _inbox(url) as inbox:
        inbox.on("order.paid")(print)  # never called
        for number in range(WARM):
            _receive(inbox, number)
        return Walk().of(lambda: _receive(inbox, WARM))


def draining(url: str, messages: int = 1) -> Walk:
    """The walk of messages that are claimed together, in a worker thread that has handled others before."""
    walk, handled = Walk(), 0
    with _inbox(url) as inbox:

        @inbox.on("order.paid", group=GROUP)
        def note(message: onceward.Message, tx: Any) -> dict[str, int]:
            nonlocal handled
            handled += 1
            if handled < WARM:
                _receive(inbox, -handled)
            elif handled == WARM:
                for number in range(messages):
                    _receive(inbox, number)
                sys.setprofile(walk.hook)
            tx.execute("SELECT 1")
            return {"seq": message.seq}

        _receive(inbox, -WARM)
        inbox.drain()
    assert handled == WARM + messages
    claims = [at for at, each in enumerate(walk.entered) if each.function == "next_batch"]
    walk.entered = walk.entered[claims[0] : claims[1]]
    assert sum(each.function == "_call" for each in walk.entered) == messages, "they did not come in one claim"
    return walk


def _inbox(url: str) -> Inbox:
    inbox = Inbox(url)
    inbox.migrate()
    inbox.context.clock = lambda: 0.0
    return inbox


def _receive(inbox: Inbox, number: int) -> None:
    inbox.receive(source="shop", id=f"evt_{number}", type="order.paid", data={"order_id": number})


def members() -> list[str]:
    """The public members of an inbox."""
    return [name for name in dir(Inbox("sqlite://")) if not name.startswith("_")]


def root_modules() -> list[str]:
    """The modules beside the rooms."""
    return sorted(path.stem for path in PACKAGE.glob("*.py"))


class Hops(NamedTuple):
    """All that is counted."""

    received: Walk
    alone: Walk
    group: Walk


def count() -> Hops:
    """Walk on SQLite, in files of their own."""
    with tempfile.TemporaryDirectory() as folder:
        urls = (f"sqlite:///{folder}/{name}.db" for name in ("received", "alone", "group"))
        return Hops(receiving(next(urls)), draining(next(urls)), draining(next(urls), GROUP))


MOST = {"receive": 25, "a drained message": 60}
"""Changes of file."""
MOST_ENTRIES, MOST_MODULES, MOST_MEMBERS = 1, 11, 40
"""How often `receive` enters inbox.py; modules at the root; members of `Inbox`, a few of which frameworks need."""


def table(hops: Hops) -> str:
    """For CONTRIBUTING.md."""
    rows = [
        (f"`{name}`" if name == "receive" else name, walk.functions, len(walk.files), walk.changes, MOST[name])
        for name, walk in zip(MOST, hops, strict=False)
    ]
    group = f"in a group of {GROUP}, for each", "", "", round(hops.group.changes / GROUP), ""
    counts = (
        ("entries of `receive` into inbox.py", hops.received.stays.count("inbox.py"), MOST_ENTRIES),
        ("modules at the root", len(root_modules()), MOST_MODULES),
        ("public members of `Inbox`", len(members()), MOST_MEMBERS),
    )
    return "\n".join(
        (
            "| one message | functions | files | changes of file | at most |",
            "|---|---|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in (*rows, group)),
            "",
            "| | now | at most |",
            "|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in counts),
        )
    )


def ways(hops: Hops) -> str:
    """For docs/architecture.md: each stay in a file."""
    shown = (
        f"{name}:\n\n```\n" + "\n".join(_folded(walk.stays)) + "\n```"
        for name, walk in (("A received message", hops.received), ("A drained message", hops.alone))
    )
    return "\n\n".join(shown)


def _folded(stays: list[str]) -> list[str]:
    return [" > ".join(stays[at : at + 5]) for at in range(0, len(stays), 5)]


def renewed(text: str, part: str) -> str:
    """A page with the part that is made by this tool."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> None:
    """Print the walks and renew the pages."""
    hops = count()
    for name, walk in (("receive", hops.received), ("a drained message", hops.alone)):
        print(f"\n# {name}\n")
        print("\n".join(walk.lines()))
    print(f"\n{table(hops)}")
    CONTRIBUTING.write_text(renewed(CONTRIBUTING.read_text(), table(hops)))
    ARCHITECTURE.write_text(tree.renewed(renewed(ARCHITECTURE.read_text(), ways(hops))))


if __name__ == "__main__":
    main()
