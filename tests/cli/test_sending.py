"""`onceward send`, and which inbox a command is about when none is named."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from onceward import Inbox
from onceward.cli.app import application
from onceward.cli.sending import KINDS, SECRET
from onceward.errors import ConfigurationError, SchemaMissing
from onceward.webhooks import GitHub
from onceward.webhooks.request import Headers, Request
from onceward.webhooks.verifier import Sample
from tests.webhooks.senders import PUBLIC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOP = """
from onceward import Inbox
from onceward.webhooks import GitHub, Shopify, Slack, StandardWebhooks, Stripe

inbox = Inbox({url!r}, service="shop")
hooks = inbox.webhooks({{
    "/stripe": Stripe("whsec_test"),
    "/github": GitHub("a secret of github"),
    "/slack": Slack("a secret of slack"),
    "/shopify": Shopify("a secret of shopify"),
    "/standard": StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
}})
"""


def command(*words: str) -> Result:
    return CliRunner().invoke(application, words)


@pytest.fixture
def project(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Inbox]]:
    """A folder with a program under a name of its own, which imports as a fresh module, and its database."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(url=sqlite_url))
    (tmp_path / "pyproject.toml").write_text(f'[tool.onceward]\ninbox = "{name}:inbox"\n')
    for variable in ("ONCEWARD_INBOX", "ONCEWARD_STORE", SECRET):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with Inbox(sqlite_url, service="shop") as inbox:
        yield f"{name}:inbox", inbox


def rows(inbox: Inbox) -> list[tuple[str, str]]:
    return sorted((row.source, row.type) for row in inbox.admin.messages())


def test_copies_are_one_message_and_the_next_command_is_printed(project: tuple[str, Inbox]) -> None:
    name, inbox = project
    sent = command("send", "order.paid", "--data", '{"order_id": 7}', "--copies", "3")
    assert sent.exit_code == 0, sent.output
    assert sent.output.count("duplicate, message #1") == 2
    assert f"Next: onceward explain {name} 1" in sent.output
    assert rows(inbox) == [("test", "order.paid")]
    detail = inbox.admin.message(1)
    assert detail is not None
    assert detail.body == b'{"order_id":7}'
    explained = command("explain", "1")  # as it was printed, and with the project's inbox
    assert explained.exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_programs_endpoint_takes_what_is_signed_as_its_provider_does(project: tuple[str, Inbox], kind: str) -> None:
    _, inbox = project
    sent = command("send", "push", "--data", '{"order_id": 7}', "--as", kind, "--copies", "2")
    assert sent.exit_code == 0, sent.output
    assert ("200 OK, accepted" in sent.output, "200 OK, duplicate" in sent.output) == (True, True)
    assert rows(inbox) == [(kind, "push")]


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A web server that keeps what it gets."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200 if self.path == "/ok" else 403)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    made = HTTPServer(("127.0.0.1", 0), Keeper)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}", got
    made.shutdown()
    thread.join()
    made.server_close()


def test_it_posts_to_a_url(
    project: tuple[str, Inbox], server: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, inbox = project
    url, got = server
    plain = command("send", "order.paid", "--to", f"{url}/ok", "--id", "evt_1", "--copies", "2")
    assert plain.exit_code == 0, plain.output
    assert [headers["ce-id"] for headers, _ in got] == ["evt_1", "evt_1"]
    # The program's secret, then one of the environment.
    assert command("send", "push", "--as", "github", "--to", f"{url}/ok").exit_code == 0
    monkeypatch.setenv(SECRET, "another secret")
    assert command("send", "push", "--as", "github", "--to", f"{url}/ok").exit_code == 0
    for (headers, body), secret in zip(got[2:], ("a secret of github", "another secret"), strict=True):
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        assert GitHub(secret).verify(Request(Headers(pairs), body), 0.0).type == "push"
    refused = command("send", "push", "--to", f"{url}/no", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.output)["deliveries"][0]["status"] == "403 Forbidden"
    unreachable = command("send", "push", "--to", "http://127.0.0.1:1/")
    assert (unreachable.exit_code, "cannot be reached" in unreachable.output) == (1, True)
    with pytest.raises(SchemaMissing):  # nothing of it went into the inbox
        inbox.admin.stats()


def test_wrong_usage_says_what_to_write(project: tuple[str, Inbox], tmp_path: Path) -> None:
    for words, told in (
        (("send",), "give one TYPE"),
        (("send", "a", "b"), "give one TYPE"),
        (("send", "a", "--data", "{"), "--data is not JSON"),
        (("send", "a", "--to", "shop"), "is not an http:// or https:// URL"),
        (
            ("send", "--store", f"sqlite:///{tmp_path}/other.db", "a", "--as", "stripe"),
            "no webhook endpoint for stripe",
        ),
    ):
        result = command(*words)
        assert result.exit_code == 2, result.output
        assert told in result.output
    assert project[0] not in command("send", "a", "--as", "stripe", "--json").output


def test_the_environment_comes_before_the_project(project: tuple[str, Inbox], monkeypatch: pytest.MonkeyPatch) -> None:
    name, inbox = project
    inbox.migrate()
    assert json.loads(command("status", "--json").output)["due"] == 0
    monkeypatch.setenv("ONCEWARD_STORE", "sqlite:////nowhere/x.db")
    assert "x.db" in command("status").output
    monkeypatch.setenv("ONCEWARD_INBOX", name)
    assert command("status").exit_code == 0
    monkeypatch.setenv("ONCEWARD_INBOX", "no_such_module:inbox")
    assert "there is no module 'no_such_module'" in command("status").output


def test_a_project_is_found_from_below_and_told_apart(
    project: tuple[str, Inbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project[1].migrate()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert command("status").exit_code == 0
    for text, told in (
        ("", "which inbox? Give MODULE:ATTR"),
        ("[tool.onceward]\ninbox = 7\n", "inbox must be a text"),
        ("[tool", "is not valid TOML"),
    ):
        (tmp_path / "below" / "pyproject.toml").write_text(text)
        result = command("status")
        assert (result.exit_code, told in result.output) == (2, True), result.output
    (tmp_path / "below" / "pyproject.toml").write_text("")
    assert "which program? Give MODULE:ATTR" in command("run").output


def test_a_public_key_cannot_sign() -> None:
    verifier = KINDS["standard"](PUBLIC)
    with pytest.raises(ConfigurationError, match="public keys only"):
        verifier.sign(Sample("evt_1", "push", {}), 0.0)
