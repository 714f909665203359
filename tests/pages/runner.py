"""Runs the blocks of a page in an empty folder, as somebody would who copies one after the other.

Invariant: what runs is the text of the page. Only addresses change: SQLite files and PostgreSQL URLs become the
database of the test, the usual ports free ones.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.pages.reader import ROOT, Block, Page
from tests.servers.ports import free_port

SECONDS = 120.0
PAUSE = 0.3
HERE = Path(__file__).parent
PORTS = ("8000", "8080", "8090")
_SQLITE = re.compile(r"sqlite:///(?!/)[A-Za-z0-9_-]+\.db")
_POSTGRES = re.compile(r"postgresql://[^\s\"'<>)`]+")
_EXTRAS = re.compile(r"([A-Za-z0-9_.-]+)(?:\[([a-z0-9,]+)\])?")


class Run:
    """One page on one store."""

    def __init__(self, page: Page, folder: Path, *, store: str, postgres: str | None) -> None:
        self._page, self._folder = page, folder
        self._store, self._postgres = store, postgres
        self._ports = {port: str(free_port()) for port in PORTS}
        self._preamble: list[str] = []
        self._behind: list[subprocess.Popen[bytes]] = []
        self._session: subprocess.Popen[str] | None = None
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        self._environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}

    def all(self) -> None:
        """Every block, from the first to the last."""
        try:
            for name in self._page.given:
                self._python(HERE / "given" / f"{name}.py", (HERE / "given" / f"{name}.py").read_text(), "given")
            for block in self._page.blocks:
                self._one(block)
        finally:
            self._end()

    def _one(self, block: Block) -> None:
        where = f"{self._page.name}:{block.line}"
        if block.reason:
            return
        text = self._adapted(block.text)
        if block.file:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block.language == "python":
            self._python(self._folder / f".block-{block.line}", text, where)
        elif block.language == "console":
            for command, output in commands(text):
                self._command(command, output, block.exit, where)
        elif block.language == "toml":
            tomllib.loads(text)
        elif block.language == "json":
            json.loads(text)

    def _adapted(self, text: str) -> str:
        if self._postgres:
            text = _POSTGRES.sub(self._postgres.replace("\\", ""), text)
            if self._store == "postgresql":
                text = _SQLITE.sub(self._postgres, text)
        for port, free in self._ports.items():
            text = re.sub(rf"(?<![\d.]){port}\b", free, text)
        return text

    def _python(self, path: Path, text: str, where: str) -> None:
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, HERE / "session.py"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        copy = self._folder / f".{path.name}.py"
        copy.write_text(text)
        self._session.stdin.write(f"{copy}\n")
        self._session.stdin.flush()
        answer = self._session.stdout.readline()
        assert answer, f"{where}: the program ended"
        error = json.loads(answer)
        assert error is None, f"{where}\n{error}"

    def _command(self, command: str, output: list[str], code: int, where: str) -> None:
        if command.startswith(("export ", "cd ")):
            self._preamble.append(command)
            if command.startswith("cd "):
                (self._folder / command.removeprefix("cd ").strip()).resolve().mkdir(parents=True, exist_ok=True)
        elif command.startswith(("pip install ", "make ")):
            check_known(command)
        elif command.endswith("&"):
            self._behind.append(self._start(command.removesuffix("&")))
        else:
            self._until_it_is_so(command, output, code, where)

    def _until_it_is_so(self, command: str, output: list[str], code: int, where: str) -> None:
        """Once; or, beside a program in the background that may not be ready yet, until it comes out as it should."""
        deadline = time.monotonic() + SECONDS
        while True:
            with self._start(command, pipe=True) as process:
                try:
                    printed, _ = process.communicate(timeout=SECONDS)
                except subprocess.TimeoutExpired:
                    kill(process)
                    raise
            shown = printed.decode()
            if process.returncode == code and matches(output, shown.splitlines()):
                return
            running = any(one.poll() is None for one in self._behind)
            waits = running and time.monotonic() < deadline
            assert waits, f"{where}: $ {command}\nexit code {process.returncode}, expected {code}\n{shown}" + (
                "\nexpected:\n" + "\n".join(output) if output else ""
            )
            time.sleep(PAUSE)

    def _start(self, command: str, *, pipe: bool = False) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", "\n".join([*self._preamble, command])],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else None,
            stderr=subprocess.STDOUT if pipe else None,
            start_new_session=True,
        )

    def _end(self) -> None:
        for process in self._behind:
            kill(process)
        if self._session is not None:
            assert self._session.stdin is not None
            assert self._session.stdout is not None
            self._session.kill()
            self._session.stdin.close()
            self._session.stdout.close()
            self._session.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the output that is shown below it."""
    command, output = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line.removeprefix("$ ").split("  #")[0].rstrip(), []
        elif command.endswith("\\"):
            command = f"{command[:-1]} {line.removeprefix('>').strip()}"
        else:
            assert command, f"a console block begins with a command, after $ and a space: {line}"
            output.append(line)
    if command:
        yield command, output


def matches(expected: list[str], shown: list[str]) -> bool:
    """Whether output is what a page shows; `...` stands for any text, and on a line by itself for any lines."""
    if not expected:
        return True
    pattern = "\n".join(r"(?:.*\n)*?.*" if line == "..." else _pattern(line) for line in expected)
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in shown)) is not None


def _pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.rstrip().split("..."))


def check_known(command: str) -> None:
    """Commands that a test must not run: what they name exists."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert words[1] in targets, f"there is no {words[1]!r} in the Makefile"
        return
    project: Mapping[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    for word in words[2:]:
        found = _EXTRAS.fullmatch(word)
        assert found, f"{command}: {word}"
        if found[1] == "onceward":
            assert set((found[2] or "").split(",")) - {""} <= extras.keys(), f"{command}: no such extra"
        else:
            importlib.metadata.version(found[1])  # what a page uses beside onceward is there for its blocks
