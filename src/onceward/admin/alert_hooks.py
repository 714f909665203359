"""Where alerts go over HTTP: a URL of your own, Slack, PagerDuty.

Invariant: a request goes to an address that was checked (`sinks/http.py`), and never holds an id, a key or a payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from onceward.admin.alerts import Alert, Hook
from onceward.domain.ids import time_ordered_id
from onceward.message import NO_HEADERS, Message

PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
_MARKS = {"began": ":red_circle:", "goes on": ":red_circle:", "over": ":large_green_circle:"}


def http_hook(url: str, *, secrets: Sequence[str], allow_private: bool = False) -> Hook:
    """Tell a URL: POSTs the alert as JSON, signed after Standard Webhooks, to a checked address."""
    return _hook(asdict, url, secrets=secrets, allow_private=allow_private)


def slack_hook(url: str, *, allow_private: bool = False) -> Hook:
    """Tell a channel of Slack by the URL of its incoming webhook; Mattermost takes the same shape."""
    return _hook(for_slack, url, secrets=None, allow_private=allow_private)


def pagerduty_hook(routing_key: str, *, url: str = PAGERDUTY, allow_private: bool = False) -> Hook:
    """Tell PagerDuty (Events API v2): an alert opens an incident, and its end resolves it."""
    return _hook(lambda alert: for_pagerduty(alert, routing_key), url, secrets=None, allow_private=allow_private)


def for_slack(alert: Alert) -> Mapping[str, Any]:
    """An alert as a message of Slack's."""
    text = f"{_MARKS[alert.state]} *{_plain(alert.service)}* {_plain(alert.what)} ({alert.state})"
    return {"text": f"{text}\nRunbook: {_plain(alert.runbook)}" if alert.runbook else text}


def _plain(text: str) -> str:
    """Without the characters that Slack reads as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_pagerduty(alert: Alert, routing_key: str) -> Mapping[str, Any]:
    """An alert as an event of PagerDuty's: those of one kind and type belong together."""
    about = {
        "routing_key": routing_key,
        "event_action": "resolve" if alert.state == "over" else "trigger",
        "dedup_key": f"onceward/{alert.service}/{alert.kind}/{alert.type}",
    }
    return about | {
        "payload": {
            "summary": f"{alert.service}: {alert.what}"[:1024],
            "source": alert.service,
            "severity": "critical" if alert.tone == "bad" else "warning",
            "timestamp": alert.at,
            "class": alert.kind,
            "custom_details": {"number": alert.number, "type": alert.type, "runbook": alert.runbook},
        }
    }


def _hook(shape: Callable[[Alert], Mapping[str, Any]], url: str, **options: Any) -> Hook:
    from onceward.sinks.http import HttpSink  # noqa: PLC0415 - its package is an extra

    sink = HttpSink(url, **options)

    def tell(alert: Alert) -> None:
        sink.publish(
            Message(
                id=f"alert_{time_ordered_id()}",
                source="onceward",
                type=f"onceward.alert.{alert.kind}",
                version=1,
                data=None,
                body=json.dumps(shape(alert)).encode(),
                headers=NO_HEADERS,
                key=None,
                seq=0,
                attempt=1,
                received_at=datetime.now(UTC),
                consumer="",
            )
        )

    tell.__name__ = url.partition("://")[2].partition("/")[0]  # what a test of it is called; the rest may be a secret
    return tell
