"""Who may come in: forged requests, sessions, addresses."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from starlette.requests import Request

from onceward import Inbox
from onceward.cli.app import application
from onceward.cli.dashboard import is_loopback
from onceward.dashboard import Credential, Dashboard, Person, access, throttle
from onceward.dashboard.access import Access
from onceward.dashboard.app import ROUTES
from onceward.errors import ConfigurationError
from tests.dashboard import shop
from tests.dashboard.conftest import Visitor, visiting
from tests.outage import away

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.dashboard import Role

INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=|javascript:|https?://")


def path_of(route: str, seqs: dict[str, int]) -> str:
    """A path that exists."""
    return route.replace("{seq}", str(seqs["dead"])).replace("{case}", "1")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site", "origin": "SELF"},
        {"referer": "https://evil.example/"},
        {},
    ],
)
def test_a_request_from_elsewhere_is_refused(
    site: Visitor, filled: tuple[Inbox, dict[str, int]], headers: dict[str, str]
) -> None:
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    seq = filled[1]["dead"]
    token = site.token(f"/preview?verb=redrive&seq={seq}")
    fields = {"token": token, "verb": "redrive", "seqs": str(seq), "reason": "x"}
    sent = {name: value.replace("SELF", site.address) for name, value in headers.items()}
    assert site.send("/act", fields, sent).status_code == 403
    detail = filled[0].admin.message(seq)
    assert detail is not None
    assert detail.status == "dead"


def test_nobody_is_signed_in_or_out_from_elsewhere(site: Visitor) -> None:
    """Else another page could have its visitors act under its own name, or be without a session."""
    site.forget_me()
    fields, elsewhere = {"name": shop.OPERATOR.name, "secret": shop.OPERATOR.secret}, {"origin": "https://evil.example"}
    refused = site.send("/login", fields, elsewhere)
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    site.sign_in(shop.OPERATOR)
    assert site.send("/logout", {}, elsewhere).status_code == 403
    assert site.get("/").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é"])
def test_a_wrong_token_is_refused(site: Visitor, filled: tuple[Inbox, dict[str, int]], token: str) -> None:
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    answer = site.post("/act", token=token, verb="redrive", seqs=str(filled[1]["dead"]), reason="x")
    assert answer.status_code == 403


def test_the_token_of_another_session_is_refused(site: Visitor, filled: tuple[Inbox, dict[str, int]]) -> None:
    """Also of the same person, and of another dashboard's."""
    page, fields = f"/messages/{filled[1]['dead']}", {"seq": str(filled[1]["dead"])}
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    token = site.token(page)
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    assert site.post("/try", token=token, **fields).status_code == 403
    assert site.post("/try", token=site.token(page), **fields).status_code == 200
    with visiting(filled[0], credentials=[Credential("eve", "operator", "another-secret-1")]) as other:
        other.sign_in(Credential("eve", "operator", "another-secret-1"))
        assert other.post("/try", token=token, **fields).status_code == 403


def test_cookies_are_out_of_reach_of_scripts_and_other_sites(
    site: Visitor, filled: tuple[Inbox, dict[str, int]]
) -> None:
    site.forget_me()
    answer = site.post("/login", name=shop.VIEWER.name, secret=shop.VIEWER.secret)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    with visiting(filled[0], credentials=shop.PEOPLE, behind_tls=True) as behind:
        answer = behind.post("/login", name=shop.VIEWER.name, secret=shop.VIEWER.secret)
        assert "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "cookie", ["", ".", "x.y", "YWRhCjA=.", "YWRhCjk5OTk5OTk5OTk5.AAAA", "\u00e9", base64.b64encode(b"ada\n1").decode()]
)
def test_a_forged_session_is_nobody(site: Visitor, cookie: str) -> None:
    site.forget_me()
    answer = site.get("/", cookie=f"{access.COOKIE}={cookie}".encode("latin-1"))
    assert answer.status_code == 303


def test_a_session_needs_its_signature(site: Visitor) -> None:
    """What it says is in order; only the signature is missing, made up, or that of another."""
    site.forget_me()
    site.sign_in(shop.VIEWER)
    own, _, signature = site.cookie.partition(".")
    said = base64.urlsafe_b64decode(own).decode()
    assert said.startswith(shop.VIEWER.name)
    forged = base64.urlsafe_b64encode(said.replace(shop.VIEWER.name, shop.OPERATOR.name).encode()).decode()
    others = Access([shop.OPERATOR], anonymous=None, has_ended=lambda _: False)
    made_up = others._signed("session", base64.urlsafe_b64decode(forged))
    for cookie in (own, f"{own}.", f"{forged}.{signature}", f"{forged}.{made_up}"):
        assert site.get_with(cookie, "/").status_code == 303, cookie
    assert site.get_with(f"{own}.{signature}", "/").status_code == 200


def test_sessions_end(site: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    site.forget_me()
    site.sign_in(shop.VIEWER)
    assert site.get("/").status_code == 200
    monkeypatch.setattr(access, "SESSION_SECONDS", -1)
    assert site.get("/").status_code == 303


@pytest.mark.parametrize(
    "changed",
    [
        Credential(shop.OPERATOR.name, "operator", "another-secret-1"),
        Credential(shop.OPERATOR.name, "viewer", shop.OPERATOR.secret),
    ],
)
def test_a_change_of_the_credentials_ends_every_session(
    site: Visitor, filled: tuple[Inbox, dict[str, int]], changed: Credential
) -> None:
    """A secret that became known opens nothing once it is replaced; nor does a role that was taken away."""
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    with visiting(filled[0], credentials=[changed, shop.READER, shop.VIEWER]) as later:
        assert later.get_with(site.cookie, "/").status_code == 303
    with visiting(filled[0], credentials=shop.PEOPLE) as later:
        assert later.get_with(site.cookie, "/").status_code == 200


def test_signing_out_ends_the_session_in_every_process(inbox: Inbox) -> None:
    """D58: a copied cookie is worth nothing then, here, elsewhere and after a restart; other sessions go on."""
    with visiting(inbox, credentials=shop.PEOPLE) as one, visiting(inbox, credentials=shop.PEOPLE) as other:
        one.sign_in(shop.OPERATOR)
        other.sign_in(shop.OPERATOR)
        copied = one.cookie
        assert [visitor.get_with(copied, "/").status_code for visitor in (one, other)] == [200, 200]
        assert one.post("/logout").status_code == 303
        assert [visitor.get_with(copied, "/").status_code for visitor in (one, other)] == [303, 303]
        assert other.get("/").status_code == 200
        with visiting(inbox, credentials=shop.PEOPLE) as later:
            assert later.get_with(copied, "/").status_code == 303
            assert later.post("/logout").status_code == 303  # without a session
        with inbox.transaction() as tx:
            tx.execute("UPDATE onceward_ended_session SET ends_at = 0")
        assert other.post("/logout").status_code == 303
        with inbox.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM onceward_ended_session").fetchone()[0] == 1  # the old one is swept


def test_a_session_that_the_database_cannot_end_is_said(inbox: Inbox) -> None:
    with visiting(inbox, credentials=shop.PEOPLE) as visitor:
        visitor.sign_in(shop.OPERATOR)
        with away(inbox):
            answer = visitor.post("/logout")
            assert (answer.status_code, "still works" in answer.text) == (503, True)
        assert visitor.get("/").status_code == 303  # this browser has lost its cookie all the same


def comes_from(address: str, **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": pairs, "client": (address, 1)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The throttle's time."""
    now = [0.0]
    monkeypatch.setattr("onceward.dashboard.throttle.time.monotonic", lambda: now[0])
    return now


def guarded(*, behind_proxy: bool = False) -> Access:
    return Access([shop.OPERATOR], anonymous=None, has_ended=lambda _: False, behind_proxy=behind_proxy)


def test_guessing_is_slowed_down_and_names_are_not_told(clock: list[float]) -> None:
    people, here = guarded(), comes_from("192.0.2.1")
    for _ in range(throttle.FREE_FAILURES + 2):
        clock[0] += 100
        assert people.sign_in(here, shop.OPERATOR.name, "wrong") is None
        assert people.sign_in(here, "nobody", "wrong") is None
    assert people.sign_in(here, shop.OPERATOR.name, shop.OPERATOR.secret) is None  # locked for a moment, though right
    clock[0] += throttle.LONGEST_LOCK
    assert people.sign_in(here, shop.OPERATOR.name, shop.OPERATOR.secret) is not None


def test_wrong_secrets_from_one_address_lock_nobody_out_elsewhere(clock: list[float]) -> None:
    """D51: not behind a proxy either, whose own address all share; and IPv6 addresses of one network are one."""
    right = (shop.OPERATOR.name, shop.OPERATOR.secret)
    for people, here, elsewhere in (
        (guarded(), comes_from("192.0.2.1"), comes_from("192.0.2.2", x_forwarded_for="192.0.2.1")),
        (guarded(), comes_from("2001:db8::1"), comes_from("2001:db8:0:1::1")),
        (
            guarded(behind_proxy=True),
            comes_from("10.0.0.1", x_forwarded_for="192.0.2.2, 192.0.2.1"),
            comes_from("10.0.0.1", x_forwarded_for="192.0.2.2"),
        ),
    ):
        for _ in range(throttle.FREE_FAILURES + 1):
            assert people.sign_in(here, shop.OPERATOR.name, "wrong") is None
        assert people.sign_in(here, *right) is None
        assert people.sign_in(elsewhere, *right) is not None
    assert guarded().sign_in(comes_from("2001:db8::1"), *right) is not None
    assert clock == [0.0]


def test_many_addresses_guess_no_faster_than_a_few(clock: list[float]) -> None:
    """D51: beyond the common limit only addresses that were right before are listened to, and memory stays small."""
    people, known = guarded(), comes_from("192.0.2.1")
    right = (shop.OPERATOR.name, shop.OPERATOR.secret)
    assert people.sign_in(known, *right) is not None
    for number in range(60):
        assert people.sign_in(comes_from(f"198.51.100.{number}"), shop.OPERATOR.name, "wrong") is None
    assert people.sign_in(comes_from("203.0.113.1"), *right) is None
    assert people.sign_in(known, *right) is not None
    clock[0] += 59
    assert people.sign_in(comes_from("203.0.113.1"), *right) is None
    clock[0] += 1
    assert people.sign_in(comes_from("203.0.113.1"), *right) is not None
    slow = throttle.Throttle()
    for number in range(throttle.REMEMBERED + 10):
        slow.failed(f"address {number}", "ada")
    assert len(slow._failures) == throttle.REMEMBERED


def test_programs_sign_in_with_basic_authentication(site: Visitor) -> None:
    site.forget_me()
    pair = base64.b64encode(f"{shop.VIEWER.name}:{shop.VIEWER.secret}".encode()).decode()
    assert site.get("/types", authorization=f"Basic {pair}").status_code == 200
    assert site.get("/types", authorization="Basic eDp5", accept="*/*").status_code == 401
    assert site.get("/types", authorization="Basic !!!", accept="*/*").status_code == 401


def test_without_credentials_it_is_read_only_and_local(filled: tuple[Inbox, dict[str, int]]) -> None:
    inbox, seqs = filled
    with visiting(inbox, anonymous="reader") as visitor:
        assert visitor.get("/").status_code == 200
        token = visitor.token(f"/messages/{seqs['done']}")
        assert visitor.post(f"/messages/{seqs['done']}/payload", token=token).status_code == 200
        assert visitor.get("/preview?verb=redrive").status_code == 403
        assert visitor.post("/act", verb="redrive", seqs="1", reason="x").status_code == 403
        # A page elsewhere whose name was pointed at this machine.
        assert visitor.get("/", host="evil.example").status_code == 403
        assert visitor.get("/login").status_code == 404
    with visiting(inbox, anonymous="viewer") as visitor:
        assert visitor.post(f"/messages/{seqs['dead']}/payload").status_code == 403


def test_an_application_may_say_who_it_is(filled: tuple[Inbox, dict[str, int]]) -> None:
    def identify(request: Request) -> Person | None:
        name = request.headers.get("x-user")
        return Person(name, "operator") if name else None

    with visiting(filled[0], identify=identify) as visitor:
        assert visitor.get("/").status_code == 403
        assert "linus" in visitor.get("/", **{"x-user": "linus"}).text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "no way to sign in"),
        ({"anonymous": "operator"}, "needs a credential"),
        ({"credentials": [Credential("ada", "operator", "short")]}, "less than 16 characters"),
        ({"credentials": [shop.OPERATOR, shop.OPERATOR]}, "the same name"),
    ],
)
def test_unsafe_settings_are_refused(
    filled: tuple[Inbox, dict[str, int]], options: dict[str, Role | list[Credential]], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Dashboard(filled[0], **options)  # type: ignore[arg-type] # one of several settings


def test_credentials_are_read_and_never_shown() -> None:
    text = "# people\n\nada operator operator-secret-123\nbob viewer viewer-secret-12345\n"
    read = Credential.parse(text)
    assert [(one.name, one.role) for one in read] == [("ada", "operator"), ("bob", "viewer")]
    assert "secret-1" not in repr(read)
    for wrong in ("ada operator", "ada admin secret-secret-secret"):
        with pytest.raises(ConfigurationError):
            Credential.parse(wrong)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])  # noqa: S104 - what is refused
def test_a_host_beyond_this_machine_is_refused_without_a_credential(tmp_path: Path, host: str) -> None:
    words = ["dashboard", "--store", f"sqlite:///{tmp_path / 'x.db'}", "--host", host, "--port", "0"]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 2
    assert "--credentials FILE" in result.stderr
    people = tmp_path / "people.txt"
    people.write_text("ada operator operator-secret-123\n")
    result = CliRunner().invoke(application, [*words, "--credentials", str(people)])
    assert result.exit_code == 2
    assert "--behind-tls" in result.stderr


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example"]))  # noqa: S104


def test_no_page_has_inline_script_or_style_or_names_another_host(
    site: Visitor, filled: tuple[Inbox, dict[str, int]]
) -> None:
    site.forget_me()
    site.sign_in(shop.OPERATOR)
    for allowed in ROUTES:
        if allowed.page is None:
            continue
        text = site.get(path_of(allowed.path, filled[1]) + "?verb=redrive").text
        assert not INLINE.search(text), allowed.path


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'inbox.db'}"
    shop.opened(url).close()
    command = [sys.executable, "-m", "onceward", "dashboard", "--store", url, "--service", "shop", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"dashboard of shop: (http://127\.0\.0\.1:\d+)/", line)
        assert found, line
        with Visitor(found[1]) as visitor:
            assert visitor.get("/").status_code == 200
            assert visitor.get("/preview?verb=redrive").status_code == 403
        process.terminate()
        assert process.wait(30) == 0


def test_the_command_serves_several_inboxes(tmp_path: Path) -> None:
    for name in ("shop", "billing"):
        url = f"sqlite:///{tmp_path / name}.db"
        shop.opened(url).close()
        (tmp_path / f"{name}_program.py").write_text(
            f"from onceward import Inbox\ninbox = Inbox({url!r}, service={name!r})\n"
        )
    words = ["dashboard", "shop_program:inbox", "--also", "bills=billing_program:inbox", "--port", "0"]
    command = [sys.executable, "-m", "onceward", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+)/", process.stdout.readline())
        assert found
        with Visitor(found[1]) as visitor:
            assert re.findall(r'<h2><a href="/(\w+)/">', visitor.get("/").text) == ["shop", "bills"]
        process.terminate()
        assert process.wait(30) == 0
    refused = CliRunner().invoke(application, ["dashboard", "--store", "sqlite://", "--also", "billing"])
    assert (refused.exit_code, "NAME=MODULE:ATTR" in refused.stderr) == (2, True)


def test_several_processes_of_an_application_accept_each_others_forms(filled: tuple[Inbox, dict[str, int]]) -> None:
    def identify(_: Request) -> Person | None:
        return Person("linus", "operator")

    seq = filled[1]["due"]
    options = {"identify": identify, "secret": "the same in every process"}
    with visiting(filled[0], **options) as one, visiting(filled[0], **options) as other:
        assert other.post("/try", token=one.token(f"/messages/{seq}"), seq=str(seq)).status_code == 200
    with visiting(filled[0], identify=identify) as one, visiting(filled[0], identify=identify) as other:
        assert other.post("/try", token=one.token(f"/messages/{seq}"), seq=str(seq)).status_code == 403
