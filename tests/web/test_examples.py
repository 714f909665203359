"""The shops of `examples/`, as their users run them: real processes, signed events that come twice, kill -9 (R57)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox
from tests.leases import bury
from tests.waiting import wait_until
from tests.web.served import ROOT, Served
from tests.webhooks.senders import Signed, sign_stripe

SECRET = "whsec_of_stripe"
MANAGE = [sys.executable, "examples/django_shop/manage.py"]
WEB = {
    "fastapi": [sys.executable, "-m", "uvicorn", "examples.fastapi_shop.app:app", "--port", "{port}"],
    "flask": [sys.executable, "-m", "flask", "--app", "examples.flask_shop.app", "run", "--port", "{port}"],
    "django": [*MANAGE, "runserver", "--noreload", "{port}"],
}
WORKER = {
    "flask": [sys.executable, "-m", "onceward", "run", "examples.flask_shop.app:inbox"],
    "django": [*MANAGE, "onceward", "run"],
}


class Shop:
    """A served shop; the last of its processes is the one that works."""

    def __init__(self, url: str, web: Served, worker: Served) -> None:
        self.inbox, self.web, self.worker = Inbox(url, service="shop"), web, worker

    def start(self) -> None:
        """Start what does not run."""
        for process in (self.web, self.worker):
            if process.process is None or process.process.poll() is not None:
                process.start()
        self.web.await_answer()

    def place(self) -> str:
        """Order something."""
        reply = self.web.caller.post("/orders", b'{"amount": 1999}', {})
        assert reply.status == 201, reply.body
        return str(reply.json["id"])

    def pay(self, order: str, event: str) -> str:
        """Have Stripe send an event."""
        signed = paid(order, event)
        reply = self.web.caller.post("/hooks/stripe", signed.body, signed.headers)
        assert reply.status == 200, reply.body
        return str(reply.json["status"])

    def order(self, order: str) -> tuple[int, int]:
        """How often its messages took effect."""
        found = self.web.get(f"/orders/{order}").json
        return found["confirmations"], found["payments"]

    def await_order(self, order: str) -> None:
        """Wait until both have, and see that it was once."""
        wait_until(lambda: self.order(order) >= (1, 1), timeout=60, message=f"the effects of order {order}")
        assert self.order(order) == (1, 1)


def paid(order: str, event: str) -> Signed:
    checkout = {"id": event, "type": "checkout.session.completed", "data": {"object": {"client_reference_id": order}}}
    return sign_stripe(json.dumps(checkout).encode(), "", now=time.time(), secret=SECRET)


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """One of the shops, on a store."""
    kind, store = request.param
    url = request.getfixturevalue(f"{store}_url")
    environment = {"SHOP_DATABASE": url, "SHOP_STRIPE_SECRET": SECRET}
    with ExitStack() as ending:
        web = Served(WEB[kind], tmp_path / "web", environment)
        worker = Served(WORKER[kind], tmp_path / "worker", environment) if kind in WORKER else web
        if kind == "django":
            subprocess.run([*MANAGE, "migrate", "-v", "0"], env={**os.environ, **environment}, cwd=ROOT, check=True)
        shop = Shop(url, web, worker)
        ending.callback(shop.inbox.close)
        ending.callback(worker.close)
        ending.callback(web.close)
        yield shop


@pytest.mark.parametrize(
    "shop",
    [(kind, store) for kind in WEB for store in ("sqlite", "postgres")],
    indirect=True,
    ids="-".join,
)
def test_every_event_takes_effect_once(shop: Shop) -> None:
    """Events come twice, the process that works is killed among them, and what it had begun is done once."""
    shop.start()
    first = shop.place()
    assert [shop.pay(first, "evt_1"), shop.pay(first, "evt_1")] == ["accepted", "duplicate"]
    shop.await_order(first)
    orders: list[Any] = []
    for number in range(8):
        orders.append(shop.place())
        shop.pay(orders[-1], f"evt_k{number}")
        if number == 4:
            assert shop.worker.end(signal.SIGKILL) == -signal.SIGKILL
            shop.start()
            assert shop.worker.process is not None
            bury(shop.inbox, shop.worker.process.pid)
    for number, order in enumerate(orders):
        assert shop.pay(order, f"evt_k{number}") == "duplicate"
    for order in orders:
        shop.await_order(order)
    stranger = paid(first, "evt_2")
    assert shop.web.caller.post("/hooks/stripe", stranger.body + b" ", stranger.headers).status == 401
    shop.pay("no such order", "evt_3")
    wait_until(lambda: shop.inbox.admin.messages(status="dead"), timeout=60, message="the unknown order to be dead")
    assert shop.web.caller.post("/orders", b'{"amount": -1}', {}).status == 422
    assert shop.worker.end(signal.SIGTERM) in (0, -signal.SIGTERM)
    assert shop.worker.process is not None
    assert shop.worker.process.pid not in {worker.pid for worker in shop.inbox.admin.workers()}
