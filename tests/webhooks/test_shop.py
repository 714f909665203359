"""The reference service as its users run it: real processes, real kills, a sender that comes again until answered."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox
from tests.leases import bury
from tests.servers.ports import free_port
from tests.waiting import wait_until
from tests.webhooks.conftest import Caller, parse
from tests.webhooks.senders import Signed, sign_standard, sign_stripe

ROOT = Path(__file__).parents[2]
STRIPE, STANDARD = "whsec_of_stripe", "whsec_" + base64.b64encode(b"s" * 32).decode()
PROGRAM = "examples.shop:inbox"
AMOUNT = 1999


class Service:
    """The service: its processes, its database, and what became of the orders."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.port, self._log = url, free_port(), folder / "log"
        self.environment = {
            **os.environ,
            "SHOP_DATABASE": url,
            "SHOP_STRIPE_SECRET": STRIPE,
            "SHOP_STANDARD_SECRET": STANDARD,
        }
        self.inbox = Inbox(url, service="shop")
        self.caller = Caller(self.port)
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "onceward", *words],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, *options: str) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onceward", "run", PROGRAM, "--http", f"127.0.0.1:{self.port}", *options],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def serves(self) -> bool:
        try:
            return parse(self.caller.send(b"GET /hooks/stripe HTTP/1.1\r\nhost: x\r\n\r\n")).status == 405
        except (OSError, AssertionError):
            return False

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def orders(self) -> dict[str, tuple[Any, ...]]:
        with self.inbox.transaction() as tx:
            rows = tx.execute("SELECT id, amount, status, paid, payments, confirmations FROM orders").fetchall()
        return {row[0]: tuple(row[1:]) for row in rows}

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.inbox.close()
        if self._log.exists():
            sys.stdout.write(self._log.read_text())  # shown when the test has failed


@pytest.fixture
def service(store_url: str, tmp_path: Path) -> Iterator[Service]:
    """The service, with its tables."""
    with closing(Service(store_url, tmp_path)) as service:
        done = service.command("migrate", PROGRAM)
        assert done.returncode == 0, done.stderr
        yield service


@contextmanager
def closing(service: Service) -> Iterator[Service]:
    try:
        yield service
    finally:
        service.close()


def placed(order: str) -> tuple[str, Signed]:
    body = {"type": "order.placed", "data": {"order_id": order, "amount": AMOUNT, "currency": "eur"}}
    return "/hooks/standard", sign_standard(json.dumps(body).encode(), f"msg_{order}", now=time.time(), secret=STANDARD)


def paid(order: str, amount: int = AMOUNT, kind: str = "checkout.session.completed", **more: Any) -> tuple[str, Signed]:
    thing = {"amount_total": amount, "currency": "eur", "client_reference_id": order, **more}
    body = {"id": f"evt_{order}", "type": kind, "data": {"object": thing}}
    return "/hooks/stripe", sign_stripe(json.dumps(body).encode(), "", now=time.time(), secret=STRIPE)


class Deliveries(threading.Thread):
    """Delivers every event until it is answered with 2xx, and some of them again; in a random order."""

    def __init__(self, service: Service, orders: list[str], seed: int) -> None:
        super().__init__(name="deliveries")
        self._caller, self._chance = service.caller, random.Random(seed)
        self.tries = self.answered = 0
        self._events = [(make, order) for order in orders for make in (placed, paid)]
        self._chance.shuffle(self._events)

    def run(self) -> None:
        for make, order in self._events:
            self._deliver(make, order)
            if self._chance.random() < 0.3:
                self._deliver(make, order)

    def _deliver(self, make: Any, order: str) -> None:
        while True:
            self.tries += 1
            path, signed = make(order)  # each try is signed anew, as senders do
            try:
                if self._caller.post(path, signed.body, signed.headers).status == 200:
                    self.answered += 1
                    return
            except (OSError, AssertionError):
                pass
            time.sleep(0.05)


def test_killed_again_and_again_each_event_takes_effect_once(service: Service) -> None:
    """Kill -9 in the middle of deliveries and handlers; whatever was answered is there, and nothing is there twice."""
    orders = [f"o-{number}" for number in range(60)]
    sender = Deliveries(service, orders, seed=7)
    service.start()
    wait_until(service.serves, timeout=60)
    sender.start()
    for kill in range(1, 6):  # by what was answered, not by time: also a fast machine has more to come at each of them
        wait_until(lambda kill=kill: sender.answered >= 20 * kill, timeout=60)  # type: ignore[misc]
        service.end(signal.SIGKILL)
        service.start()
        wait_until(service.serves, timeout=60)
    sender.join(120)
    assert not sender.is_alive()
    assert service.process is not None
    bury(service.inbox, alive=service.process.pid)
    assert sender.tries > sender.answered, "some had to come again"
    expected = dict.fromkeys(orders, (AMOUNT, "paid", AMOUNT, 1, 1))
    wait_until(lambda: service.orders() == expected, timeout=90, message=f"{len(orders)} orders, paid once")
    assert service.end(signal.SIGTERM) == 0
    stats = service.inbox.admin.stats()
    assert (stats.dead, stats.quarantined, stats.due, stats.running) == (0, 0, 0, 0)
    assert service.orders() == expected


def test_a_graceful_stop_answers_what_it_has_and_loses_nothing(service: Service) -> None:
    """SIGTERM while events come: exit code 0, every 200 is in the ledger, nothing is left claimed."""
    orders = [f"o-{number}" for number in range(30)]
    sender = Deliveries(service, orders, seed=8)
    service.start()
    wait_until(service.serves, timeout=60)
    sender.start()
    time.sleep(0.3)
    assert service.end(signal.SIGTERM) == 0
    assert not service.serves()
    assert service.inbox.admin.workers() == []
    service.start("--concurrency", "2")
    sender.join(120)
    assert not sender.is_alive()
    expected = dict.fromkeys(orders, (AMOUNT, "paid", AMOUNT, 1, 1))
    wait_until(lambda: service.orders() == expected, timeout=60)


def test_what_the_shop_refuses_is_dead_and_seen(service: Service) -> None:
    """Authentic is not right: a payment of another amount is not booked, and says why."""
    service.start()
    wait_until(service.serves, timeout=60)
    for path, signed in (placed("a"), paid("b", kind="payment_intent.succeeded", metadata=None)):
        assert service.caller.post(path, signed.body, signed.headers).json == {"status": "accepted"}
    wait_until(lambda: service.orders().get("a") and service.orders().get("b"), timeout=30)
    path, signed = paid("a", amount=1)
    assert service.caller.post(path, signed.body, signed.headers).json == {"status": "accepted"}
    wait_until(lambda: service.inbox.admin.stats().dead == 1, timeout=30)
    (row,) = service.inbox.admin.messages(status="dead")
    assert "order a is 1999 eur, not 1 eur" in (row.error or "")
    assert service.orders()["a"] == (AMOUNT, "placed", 0, 0, 0)
    path, forged = paid("c")
    assert service.caller.post(path, forged.body + b" ", forged.headers).status == 401


def test_the_supervisor_takes_webhooks_while_its_workers_die(sqlite_url: str, tmp_path: Path) -> None:
    with closing(Service(sqlite_url, tmp_path)) as service:
        assert service.command("migrate", PROGRAM).returncode == 0
        service.start("--processes", "2")
        wait_until(service.serves, timeout=60)
        wait_until(lambda: len(service.inbox.admin.workers()) == 2, timeout=60)
        os.kill(service.inbox.admin.workers()[0].pid, signal.SIGKILL)
        for path, signed in (placed("a"), paid("a")):
            assert service.caller.post(path, signed.body, signed.headers).json == {"status": "accepted"}
        wait_until(lambda: service.orders().get("a") == (AMOUNT, "paid", AMOUNT, 1, 1), timeout=60)
        assert service.end(signal.SIGTERM) == 0
        assert not service.serves()


def test_what_cannot_start_says_what_to_do(sqlite_url: str, tmp_path: Path) -> None:
    with closing(Service(sqlite_url, tmp_path)) as service:
        service.command("migrate", PROGRAM)
        for address in ("nowhere", "127.0.0.1:99999"):
            done = service.command("run", PROGRAM, "--http", address)
            assert (done.returncode, "is not an address to listen on" in done.stderr) == (2, True), done.stderr
        service.environment["SHOP_STRIPE_SECRET"] = ""
        done = service.command("run", PROGRAM, "--http", "8080")
        assert (done.returncode, "secret 1 of webhook 'stripe' is empty" in done.stderr) == (2, True), done.stderr
        service.environment |= {"SHOP_STORE": sqlite_url, "SHOP_FOLDER": str(tmp_path)}
        done = service.command("run", "tests.cli.shop:inbox", "--http", "8080")
        assert (done.returncode, "inbox.webhooks(" in done.stderr) == (2, True), done.stderr


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("h11", "cryptography", "httpx2", "django", "psycopg", "aiosqlite"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from onceward import ConfigurationError, Inbox
from onceward.webhooks import Stripe, StandardWebhooks
Inbox("sqlite://").webhooks({"/stripe": Stripe("secret")})
def said(call):
    try:
        call()
    except ConfigurationError as error:
        print(error)
def paypal():
    from onceward.webhooks import PayPal
def serve():
    import onceward.runtime.http_server
said(paypal), said(serve), said(lambda: StandardWebhooks("whpk_" + "A" * 43 + "="))
"""


def test_the_extras_are_named_where_they_are_missing() -> None:
    """Webhooks with shared secrets need nothing but the standard library."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("pip install 'onceward[webhooks]'") == 2
    assert done.stdout.count("pip install 'onceward[serve]'") == 1
