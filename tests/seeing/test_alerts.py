"""Alerts: told when they begin, not again and again; and a log in which no payload is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from standardwebhooks import Webhook

from onceward import Inbox, Message, Retry, RetryPolicy, Settings
from onceward.admin.alert_hooks import for_pagerduty, for_slack, http_hook, pagerduty_hook, slack_hook
from onceward.admin.alerts import Alert, Alerts, QuietHours, Rules, log_hook
from onceward.admin.concerns import Threshold, standing
from onceward.admin.overview import Failing
from onceward.cli.processes import _JsonLines
from onceward.errors import ConfigurationError
from onceward.runtime.runner import perform
from onceward.steps.history import save_activity
from onceward.steps.settle import OFTEN
from tests.seeing.conftest import SOURCE, deliver, pay
from tests.waiting import wait_until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RULES = Rules(quiet=timedelta(seconds=60), again=timedelta(seconds=600), backlog=timedelta(0))


def watched(inbox: Inbox, told: list[Alert]) -> Alerts:
    """Alerts that are told to a list."""
    return inbox.admin.alert(told.append, rules=RULES)


def kinds(alerts: list[Alert]) -> dict[str, str]:
    """What was told, by kind."""
    return {alert.kind: alert.state for alert in alerts}


def test_what_needs_a_person_is_told_and_told_when_it_is_over(inbox: Inbox) -> None:
    told: list[Alert] = []
    alerts = watched(inbox, told)
    assert alerts.look(0) == []
    pay(inbox)
    seq = deliver(inbox, 1, amount=-1)
    deliver(inbox, 2)
    deliver(inbox, 2, amount=77)
    deliver(inbox, 3, kind="nobody.knows")
    inbox.drain()
    deliver(inbox, 4, account="b")
    began = {"dead", "mismatch", "unhandled", "blocked", "backlog"}
    assert kinds(alerts.look(100)) == dict.fromkeys(began, "began")
    assert kinds(alerts.look(170)) == {"stuck": "began"}  # due since the last look, and nobody runs
    assert alerts.look(200) == []  # it goes on, and that is known
    inbox.admin.discard(seq, reason="x")
    # What waited behind it is due now: twice as many as were told about.
    assert kinds(alerts.look(210)) == {"dead": "over", "blocked": "over", "backlog": "goes on"}
    assert {alert.kind for alert in told} >= began


def test_what_is_paused_on_purpose_is_not_told(inbox: Inbox) -> None:
    """Neither what is due, nor what is tried again, nor the key it holds; all of it is told once it goes on again."""
    pay(inbox)

    @inbox.on("refund", key="account", retry=RetryPolicy(first=timedelta(0)))
    def refund(message: Message, tx: Any) -> None:
        del tx
        raise Retry("not yet", after=0 if message.attempt < OFTEN else 3600)

    rules = replace(RULES, held=timedelta(0), quiet=timedelta(0))
    for number in (1, 2):
        deliver(inbox, number, kind="refund")
    inbox.drain()
    inbox.send("shipped", {}, to="warehouse")
    deliver(inbox, 3)
    all_of_it = {"stuck", "outbox", "held", "backlog", "failing"}
    limits = rules.limits
    found = perform(inbox.store, lambda: standing(inbox.context, limits)).concerns
    assert {one.kind for one in found} == all_of_it
    for message_type in ("refund", "paid"):
        inbox.admin.pause(type=message_type, reason="the bank is away")
    inbox.admin.pause(destination="warehouse", reason="it moves")
    alerts = inbox.admin.alert(rules=rules)
    assert [*alerts.look(0), *alerts.look(100)] == []
    assert inbox.admin.backlog()[:3] == (0, 0.0, 0)
    inbox.admin.resume(destination="warehouse")
    assert kinds(alerts.look(200)) == {"outbox": "began"}
    inbox.admin.resume(type="refund")
    assert set(kinds(alerts.look(300))) == {"held", "failing"}
    assert kinds(alerts.look(400)) == {"stuck": "began"}
    inbox.admin.pause(everything=True, reason="a move")
    assert set(kinds(alerts.look(500)).values()) == {"over"}
    assert alerts.look(600) == []


def test_what_waits_for_a_destination_without_a_relay_is_told(inbox: Inbox) -> None:
    """D22: no process with its sink runs, so nobody charges it; somebody must hear of it all the same."""
    alerts = watched(inbox, [])
    inbox.send("shipped", {}, to="warehouse")
    (alert,) = alerts.look(0)
    assert (alert.kind, alert.number, "warehouse" in alert.what) == ("outbox", 1, True)


def test_what_comes_and_goes_is_not_told_each_time(inbox: Inbox) -> None:
    pay(inbox)
    alerts = watched(inbox, [])
    found = []
    for turn in range(6):  # dead and discarded again, every ten seconds
        seq = deliver(inbox, turn, amount=-1)
        inbox.drain()
        found += [alert.state for alert in alerts.look(turn * 20.0) if alert.kind == "dead"]
        inbox.admin.discard(seq, reason="x")
        found += [alert.state for alert in alerts.look(turn * 20.0 + 10) if alert.kind == "dead"]
    assert found == ["began", "over", "began", "over"]  # at 0 and 10, at 60 and 70: once a minute at most


def test_what_goes_on_is_told_again_later_or_when_it_has_doubled(inbox: Inbox) -> None:
    pay(inbox)
    alerts = watched(inbox, [])

    def dead(now: float) -> list[tuple[str, int]]:
        inbox.drain()
        return [(alert.state, alert.number) for alert in alerts.look(now) if alert.kind == "dead"]

    deliver(inbox, 1, amount=-1)
    assert dead(0) == [("began", 1)]
    deliver(inbox, 2, amount=-1, account="b")
    assert dead(30) == []  # doubled, but too soon
    assert dead(61) == [("goes on", 2)]
    assert dead(600) == []
    assert dead(661) == [("goes on", 2)]


def test_what_keeps_failing_is_told_before_it_is_dead(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    """D46: a policy of two days would else hide a broken handler, and the key that it holds, for two days."""

    @inbox.on("paid", key="account", retry=RetryPolicy(first=timedelta(0)))
    def paid(message: Message, tx: Any) -> None:
        del tx
        raise Retry("not yet", after=0 if message.attempt < OFTEN else 3600)

    alerts = inbox.admin.alert(rules=replace(RULES, held=timedelta(0), backlog=timedelta(hours=1)))
    seq = deliver(inbox, 1)
    assert alerts.look(0) == []
    inbox.drain()
    assert kinds(alerts.look(1)) == {"failing": "began"}
    deliver(inbox, 2)
    assert kinds(alerts.look(2)) == {"held": "began"}
    assert inbox.admin.failing() == Failing(messages=1, held_keys=0)  # ten minutes are not over
    assert inbox.admin.failing(times=OFTEN + 1, held_for=timedelta(0)) == Failing(messages=0, held_keys=1)
    failures = [record.levelname for record in caplog.records if "failed: Retry" in record.getMessage()]
    assert failures == ["WARNING"] * (OFTEN - 1) + ["ERROR"]
    inbox.admin.discard(seq, reason="x")
    assert kinds(alerts.look(3)) == {"failing": "over", "held": "over"}


def test_retention_that_is_too_short_is_told(store_url: str) -> None:
    with Inbox(store_url) as inbox:
        inbox.migrate()
        inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=20))
        pay(inbox)
        deliver(inbox, 1)
    short = Settings(dedupe_retention=timedelta(days=10))
    with Inbox(store_url, settings=short) as inbox:
        (alert,) = [one for one in inbox.admin.alert(rules=RULES).look(0) if one.kind == "retention"]
        assert "may redeliver for longer than ids are remembered" in alert.what


def test_a_running_inbox_tells_by_itself_and_a_broken_hook_harms_nothing(inbox: Inbox) -> None:
    told: list[Alert] = []
    pay(inbox)

    def broken(alert: Alert) -> None:
        raise RuntimeError(alert.kind)

    inbox.admin.alert(broken, told.append, rules=Rules(every=timedelta(milliseconds=50)))
    deliver(inbox, 1, amount=-1)
    worker = Thread(target=inbox.run)
    worker.start()
    wait_until(lambda: "dead" in kinds(told), message="the alert about the dead message")
    deliver(inbox, 2, account="b")
    wait_until(lambda: inbox.admin.stats().done == 1, message="the handler, which goes on")
    inbox.stop()
    worker.join()


@contextmanager
def listening() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that notes what it is sent."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Noting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its signature
            pass

    server = HTTPServer(("127.0.0.1", 0), Noting)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_url_is_told_under_a_signature(inbox: Inbox) -> None:
    pay(inbox)
    deliver(inbox, 1, amount=-1)
    inbox.drain()
    with listening() as (url, got):
        inbox.admin.alert(http_hook(url, secrets=[SECRET], allow_private=True), rules=RULES).look(0)
        headers, body = got[0]
        Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
        assert json.loads(body)["kind"] == "dead"


def test_the_log_names_the_message_and_never_its_content(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    canaries = {"data": "CANARY-DATA", "header": "CANARY-HEADER", "key": "CANARY-KEY", "error": "CANARY-ERROR"}
    caplog.set_level(logging.DEBUG, "onceward")

    @inbox.on("paid", key="key")
    def paid(message: Message, tx: Any) -> None:
        del tx
        raise ValueError(f"{canaries['error']} {message.data}")

    data = {"value": canaries["data"], "key": canaries["key"]}
    arguments: Any = {"source": SOURCE, "type": "paid", "data": data, "headers": {"authorization": canaries["header"]}}
    inbox.receive(**arguments, id="evt-1")
    inbox.drain()
    inbox.process(**{**arguments, "data": {**data, "key": "another"}}, id="evt-2")
    inbox.admin.alert(log_hook, rules=RULES).look(0)
    formatted = [json.loads(_JsonLines().format(record)) for record in caplog.records if record.name == "onceward"]
    failed = [line for line in formatted if "attempt" in line]
    for line, message_id in zip(failed, ("evt-1", "evt-2"), strict=True):
        assert (line["message_id"], line["source"], line["type"]) == (message_id, SOURCE, "paid")
        assert (line["attempt"], line["error"]) == (1, "ValueError")
        assert len(line["fingerprint"]) == 12
    text = json.dumps(formatted) + caplog.text
    assert not [canary for canary in canaries.values() if canary in text]


def test_a_type_has_thresholds_of_its_own(inbox: Inbox) -> None:
    """From so many dead on, and when so many attempts fail; the others keep the general ones."""
    pay(inbox)
    rules = replace(RULES, backlog=timedelta(hours=1), types={"paid": Threshold(dead=3, failed=0.5)})
    alerts = inbox.admin.alert(rules=rules)

    def told(now: float) -> dict[tuple[str, str], int]:
        inbox.drain()
        perform(inbox.store, lambda: save_activity(inbox.context))
        return {(one.kind, one.type): one.number for one in alerts.look(now) if one.kind in ("dead", "failed")}

    for number in range(2):
        deliver(inbox, number, amount=-1, account=f"a{number}")
    assert told(0) == {}
    for number in range(2, 12):
        deliver(inbox, number, amount=-1, account=f"a{number}")
    assert told(100) == {("dead", "paid"): 12}
    for number in range(12, 22):
        deliver(inbox, number, amount=-1, account=f"a{number}")
    wanted = {("failed", "paid"): 22} if "history" in inbox.store.capabilities else {}
    assert told(101) == wanted  # 22 attempts are enough for a share
    (concern,) = [one for one in alerts.look(1000) if one.kind == "dead"]
    assert (concern.runbook, concern.tone) == ("docs/runbooks/poison-message.md", "bad")


def test_slow_types_are_told(inbox: Inbox) -> None:
    if "history" not in inbox.store.capabilities:
        return  # nothing is measured there
    pay(inbox)
    types = {"paid": Threshold(wait=timedelta(0), run=timedelta(hours=1))}
    alerts = inbox.admin.alert(rules=replace(RULES, backlog=timedelta(hours=1), types=types))
    for number in range(25):
        deliver(inbox, number, account=f"a{number}")
    inbox.drain()
    perform(inbox.store, lambda: save_activity(inbox.context))
    (alert,) = alerts.look(0)
    assert (alert.kind, alert.type, alert.number) == ("slow", "paid", 25)
    assert "5 of 100 messages waited for" in alert.what


def test_quiet_hours_hold_back_what_is_not_urgent(inbox: Inbox) -> None:
    pay(inbox)
    hours = QuietHours(time(22), time(7), zone="Europe/Berlin")
    alerts = inbox.admin.alert(rules=replace(RULES, backlog=timedelta(hours=1), quiet_hours=hours))
    deliver(inbox, 1, amount=-1)
    deliver(inbox, 2)
    deliver(inbox, 2, amount=77)
    inbox.drain()
    night, day = datetime(2026, 1, 10, 2, tzinfo=UTC), datetime(2026, 1, 10, 6, 1, tzinfo=UTC)  # 03:00 and 07:01 there
    assert kinds(alerts.look(0, night)) == {"dead": "began"}
    assert kinds(alerts.look(100, day)) == {"mismatch": "began", "blocked": "began"}
    covered = [hours.covers(datetime(2026, 1, 10, hour, tzinfo=UTC)) for hour in (20, 21, 5, 6)]
    assert covered == [False, True, True, False]
    assert QuietHours(time(1), time(2)).covers(datetime(2026, 1, 10, 1, 30, tzinfo=UTC))


WRONG: dict[str, Callable[[], object]] = {
    "begin": lambda: QuietHours(22, time(7)),  # type: ignore[arg-type] # what is refused
    "zone": lambda: QuietHours(time(22), time(7), zone="Berlin"),
    "urgent": lambda: QuietHours(time(22), time(7), urgent=["death"]),  # type: ignore[list-item] # the same
    "dead": lambda: Threshold(dead=0),
    "failed": lambda: Threshold(failed=2),
    "types": lambda: Rules(types={"paid": 5}),  # type: ignore[dict-item] # the same
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_rules_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


def test_slack_and_pagerduty_get_their_shapes(inbox: Inbox) -> None:
    pay(inbox)
    with listening() as (url, got):
        hooks = slack_hook(url, allow_private=True), pagerduty_hook("key-1", url=url, allow_private=True)
        alerts = inbox.admin.alert(*hooks, rules=replace(RULES, quiet=timedelta(0)))
        seq = deliver(inbox, 1, amount=-1)
        inbox.drain()
        alerts.look(0)
        inbox.admin.discard(seq, reason="x")
        alerts.look(1)
        bodies = [json.loads(body) for _, body in got]
        assert not any("webhook-signature" in {name.lower() for name in headers} for headers, _ in got)
    slack, events = [one for one in bodies if "text" in one], [one for one in bodies if "routing_key" in one]
    assert "1 dead message needs a decision" in slack[0]["text"]
    assert slack[-1]["text"].startswith(":large_green_circle:")
    assert [one["event_action"] for one in events] == ["trigger", "resolve"]
    assert {one["dedup_key"] for one in events} == {f"onceward/{inbox.context.service}/dead/"}
    assert (events[0]["payload"]["severity"], events[0]["routing_key"]) == ("critical", "key-1")
    nasty = Alert("dead", "began", "<!channel>", "a & b", 1, "2026-01-01T00:00:00+00:00")
    assert "&lt;!channel&gt;" in for_slack(nasty)["text"]
    assert for_pagerduty(nasty, "k")["payload"]["custom_details"]["number"] == 1


def test_hooks_are_tested(inbox: Inbox) -> None:
    told: list[Alert] = []

    def broken(alert: Alert) -> None:
        raise RuntimeError(alert.kind)

    tested = inbox.admin.alert(told.append, broken).test()
    assert [(one.error, alert.kind) for one, alert in zip(tested[:1], told, strict=True)] == [("", "test")]
    assert tested[1].error == "RuntimeError: test"
    assert "broken" in tested[1].hook
