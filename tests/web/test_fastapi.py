"""Webhooks as routes of FastAPI with their entries in the schema; the dashboard behind an application's own auth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request  # noqa: TC002 - FastAPI needs it

from onceward import ConfigurationError
from onceward.dashboard import Dashboard, Person
from onceward.integrations.fastapi import RESPONSES, webhook_router
from onceward.webhooks import GitHub, Stripe
from tests.contract.harness import Shop
from tests.webhooks.conftest import Caller, Reply, parse, served, small
from tests.webhooks.senders import SECRET
from tests.webhooks.test_mounting import genuine


@pytest.fixture
def shop(sqlite_url: str) -> Any:
    """A shop with a handler."""
    with Shop(sqlite_url, "def") as shop:
        shop.handle()
        yield shop


def test_routes_answer_as_the_application(shop: Shop) -> None:
    """R57: one implementation: whatever is sent, the answer is that of the ASGI application, byte for byte."""
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET), "/v1/hub": GitHub(SECRET)}, limits=small())
    app = FastAPI()
    app.include_router(webhook_router(hooks), prefix="/routes")
    app.mount("/mounted", hooks)
    signed = genuine()

    def both(caller: Caller, method: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        raw = [
            f"{method} {place}/stripe HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode("latin-1") + body
            for place in ("/mounted", "/routes")
        ]
        answers = [parse(caller.send(one)) for one in raw]
        dated = [{name: value for name, value in one.headers.items() if name != "date"} for one in answers]
        assert (answers[0].status, answers[0].body, dated[0]) == (answers[1].status, answers[1].body, dated[1])
        return answers[0]

    json_headers = {"content-type": "application/json", "content-length": str(len(signed.body)), **signed.headers}
    with served(app) as caller:
        assert caller.post("/routes/stripe", signed.body, signed.headers).json == {"status": "accepted"}
        assert both(caller, "POST", signed.body, json_headers).json == {"status": "duplicate"}
        assert both(caller, "POST", b"{}", {**json_headers, "content-length": "2"}).status == 401
        assert both(caller, "POST", signed.body, {**json_headers, "content-type": "text/plain"}).status == 415
        assert both(caller, "POST", b"x" * 1001, {**json_headers, "content-length": "1001"}).status == 413
        assert both(caller, "GET", b"", {}).status == 405
        assert both(caller, "DELETE", b"", {}).headers["allow"] == "POST"
    shop.drain()
    assert shop.effects() == ["evt_1"]


def test_the_schema_says_what_a_webhook_takes_and_answers(shop: Shop) -> None:
    hooks = shop.inbox.webhooks({"/stripe": Stripe(SECRET), "/v1/git-hub": GitHub(SECRET)})
    router = APIRouter()
    router.include_router(webhook_router(hooks, tags=["incoming"]))
    app = FastAPI()
    app.include_router(router, prefix="/hooks")
    paths = app.openapi()["paths"]
    assert set(paths) == {"/hooks/stripe", "/hooks/v1/git-hub"}
    assert set(paths["/hooks/stripe"]) == {"post"}
    entry = paths["/hooks/v1/git-hub"]["post"]
    assert (entry["tags"], entry["summary"], entry["operationId"]) == (
        ["incoming"],
        "Webhooks of github",
        "webhook_v1_git_hub",
    )
    assert set(entry["responses"]) == {str(status) for status in RESPONSES}
    assert entry["requestBody"]["required"] is True
    assert "parameters" not in entry
    with pytest.raises(ConfigurationError, match="hooks"):
        webhook_router({"/stripe": Stripe(SECRET)})  # type: ignore[arg-type] # the mistake


def test_the_dashboard_is_behind_the_applications_own_auth(shop: Shop) -> None:
    """R57: a session of the application says who it is; nobody else sees or changes anything."""
    app, seen = FastAPI(), list[str]()
    app.add_middleware(SessionMiddleware, secret_key="of a test")

    @app.post("/login/{name}")
    def login(name: str, request: Request) -> None:
        request.session["user"] = name

    async def identify(request: Request) -> Person | None:
        seen.append(request.url.path)
        name = request.session.get("user", "")
        return {"ada": Person("ada", "operator"), "bob": Person("bob", "viewer")}.get(name)

    app.mount("/inbox", Dashboard(shop.inbox, identify=identify, secret="the same", sign_in_at="/login"))
    app.mount("/closed", Dashboard(shop.inbox, identify=lambda _: None))
    app.mount("/wrong", Dashboard(shop.inbox, identify=lambda _: "ada"))  # type: ignore[arg-type,return-value] # a mistake
    shop.receive("m1")
    with served(app) as caller:

        def asks(path: str, cookie: str = "", accept: str = "text/html") -> Reply:
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\ncookie: {cookie}\r\n\r\n"
            return parse(caller.send(head.encode()))

        stranger = asks("/inbox/messages")
        assert (stranger.status, stranger.headers["location"]) == (303, "/login?next=%2Finbox%2Fmessages")
        assert asks("/inbox/types", accept="application/json").status == 403
        assert [asks(path).status for path in ("/closed/", "/wrong/", "/inbox/login")] == [403, 403, 404]
        cookies = {
            name: caller.post(f"/login/{name}", b"", {}).headers["set-cookie"].split(";")[0]
            for name in ("ada", "bob", "eve")
        }
        assert asks("/inbox/messages", cookies["eve"]).status == 303
        assert b"order.paid" in asks("/inbox/messages", cookies["bob"]).body
        assert asks("/inbox/preview?verb=discard&seq=1", cookies["bob"]).status == 403
        assert asks("/inbox/preview?verb=discard&seq=1", cookies["ada"]).status == 200
        form = {"cookie": cookies["ada"], "content-type": "application/x-www-form-urlencoded", "origin": "http://x"}
        assert caller.post("/inbox/act", b"verb=discard&seqs=1&reason=x&token=forged", form).status == 403
        assert caller.post("/inbox/act", b"verb=discard&seqs=1&reason=x", {}).status == 403
    assert seen[0] == "/inbox/messages"
    assert shop.status("m1") == "due"
    with pytest.raises(ConfigurationError, match="goes with identify="):
        Dashboard(shop.inbox, anonymous="viewer", sign_in_at="/login")


def test_the_schema_can_be_served(shop: Shop) -> None:
    app = FastAPI()
    app.include_router(webhook_router(shop.inbox.webhooks({"/stripe": Stripe(SECRET)})))
    with served(app) as caller:
        reply = parse(caller.send(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"))
    assert "/stripe" in json.loads(reply.body)["paths"]
