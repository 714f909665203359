"""`onceward init`: what it writes runs at once, with the commands that it prints (R69)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from onceward.cli.app import application
from onceward.cli.beginning import content
from tests.servers.ports import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)
OTHER_STORE = pytest.mark.whole("each framework is walked through on one of the stores every day")


class Service:
    """What was written, and its processes."""

    def __init__(self, folder: Path, url: str, environment: dict[str, str]) -> None:
        self.folder, self.url, self.environment, self.port = folder, url, environment, free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, line: str) -> list[str]:
        """A printed command, with this Python and a free port."""
        words = line.removesuffix(" &").replace("8080", str(self.port)).split("'")
        split = [part if place % 2 else part.split() for place, part in enumerate(words)]
        flat = [word for part in split for word in ([part] if isinstance(part, str) else part)]
        return [sys.executable, *(flat[1:] if flat[0] == "python" else ["-m", *flat])]

    def start(self, line: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self._started.append(
                subprocess.Popen(self.command(line), cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            )

    def run(self, line: str) -> str:
        """Run a command that must succeed."""
        done = subprocess.run(
            self.command(line), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def onceward(self) -> str:
        """The command line."""
        return "python manage.py onceward" if (self.folder / "manage.py").exists() else "onceward"

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(f"{self.onceward} status --json"))
        return found

    def close(self) -> None:
        for process in self._started:
            process.send_signal(signal.SIGINT)
        for process in self._started:
            process.wait(timeout=60)
        sys.stdout.write((self.folder / "log").read_text())


@pytest.mark.parametrize(
    ("framework", "store"),
    [
        ("plain", "sqlite"),
        pytest.param("plain", "postgresql", marks=OTHER_STORE),
        ("fastapi", "postgresql"),
        ("flask", "sqlite"),
        pytest.param("django", "sqlite", marks=OTHER_STORE),
        ("django", "postgresql"),
    ],
)
def test_what_it_writes_runs_with_the_commands_that_it_prints(
    framework: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgresql" else "sqlite"
    folder = tmp_path / "My shop"
    printed = CliRunner().invoke(application, ["init", str(folder), "--framework", framework, "--store", store])
    assert printed.exit_code == 0, printed.output
    lines = [line.strip() for line in printed.output.splitlines()[1:]]
    assert lines[0] == f"cd '{folder}'"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    service = Service(folder, url, {**environment, "DATABASE_URL": url})
    try:
        walk(service, framework, lines[1:-1])
    finally:
        service.close()


def walk(service: Service, framework: str, lines: list[str]) -> None:
    """What was printed, line by line; then what the service is for."""
    for line in lines:
        if line.endswith(" &"):
            service.start(line)
        elif line.startswith(("onceward", "python")):
            service.run(line)
    wait_until(lambda: service.stats()["due"] == 0, timeout=120, message="the handled payment")
    assert service.stats()["duplicates"] == 1
    if framework != "plain":
        assert [service_pays(service) for _ in range(2)] == ["accepted", "duplicate"]
    path = "hooks/stripe" if framework in ("plain", "django") else "webhooks/hooks/stripe"
    address = f"http://127.0.0.1:{service.port}/{path}"
    data = '{"id":"pi_3","amount":5}'
    sent = service.run(f"{service.onceward} send payment_intent.succeeded --as stripe --to {address} --data '{data}'")
    assert "200 OK, accepted" in sent


def service_pays(service: Service) -> str:
    """A request of the shop's own pages."""
    body = json.dumps({"id": "pi_2", "account": "a-8", "amount": 7}).encode()
    headers = {"content-type": "application/json", "idempotency-key": "order-1"}
    request = urllib.request.Request(f"http://127.0.0.1:{service.port}/payments", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
        status: str = json.load(answer)["status"]
    return status


@pytest.mark.parametrize("framework", ["plain", "django"])
def test_its_proof_passes(framework: str, tmp_path: Path) -> None:
    CliRunner().invoke(application, ["init", str(tmp_path), "--framework", framework])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    refused = CliRunner().invoke(application, ["init", str(tmp_path)])
    assert (refused.exit_code, "has pyproject.toml already" in refused.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_the_name_of_the_folder_becomes_a_name_that_packages_may_have() -> None:
    for name, wanted in (("My Shop", "my-shop"), ("übung", "bung"), ("!", "service")):
        text = content(name, "plain", "sqlite")["pyproject.toml"]
        assert re.search(r'^name = "(.*)"$', text, re.MULTILINE)[1] == wanted  # type: ignore[index]
