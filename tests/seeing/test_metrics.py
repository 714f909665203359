"""Metrics, spans and what is shipped for Grafana and Prometheus: the same numbers, the same names, nobody's data."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics as messaging
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import onceward
from onceward import Inbox, Message, Reject
from onceward.observability.opentelemetry import instrument
from onceward.observability.prometheus import InboxCollector, exposition, watch_handlers
from onceward.runtime.runner import perform
from onceward.steps.history import save_activity
from tests.seeing.conftest import SOURCE, deliver, pay

if TYPE_CHECKING:
    from collections.abc import Iterator

OPS = Path(onceward.__file__).parent / "observability" / "ops"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MESSAGE_ID, BATCH_COUNT = names.MESSAGING_MESSAGE_ID, names.MESSAGING_BATCH_MESSAGE_COUNT
SECRETS = ("evt-1", "secret-key")


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """Every sample by name and state."""
    families = text_string_to_metric_families(text.decode())
    return {(one.name, one.labels.get("state", "")): one.value for family in families for one in family.samples}


def test_prometheus_has_the_numbers_of_everywhere_else(inbox: Inbox) -> None:
    pay(inbox)
    for number in range(3):
        deliver(inbox, number, amount=-1, account="secret-key")
    deliver(inbox, 1, amount=-1, account="secret-key")
    inbox.drain()
    stats = inbox.admin.stats()
    found = samples(exposition(inbox))
    assert found["onceward_messages", "dead"] == stats.dead == 1
    assert found["onceward_messages", "waiting"] == stats.waiting == 2
    assert found["onceward_duplicates", ""] == stats.duplicates == 1
    assert found["onceward_blocked_keys", ""] == 1
    assert found["onceward_up", ""] == 1
    assert not any(secret in exposition(inbox).decode() for secret in SECRETS)


def test_metrics_have_the_last_minutes_of_the_history(inbox: Inbox) -> None:
    """By type once a handler has run for it, for senders choose the others; by source where the program declares it."""
    pay(inbox)
    inbox.retention.declare_source("stripe", redelivers_for=timedelta(days=3))
    for number in range(3):
        deliver(inbox, number)
    deliver(inbox, 1)
    deliver(inbox, 7, kind="made-up-by-a-sender")
    inbox.drain()
    perform(inbox.store, lambda: save_activity(inbox.context))
    families = text_string_to_metric_families(exposition(inbox).decode())
    found = {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}
    service, paid = ("service", "shop"), (("consumer", "shop"), ("service", "shop"), ("type", "paid"))
    assert found["onceward_recent", *paid, ("what", "done")] == 3
    assert found["onceward_recent", *paid, ("what", "duplicates")] == 1
    assert found["onceward_recent_run_seconds", paid[0], ("quantile", "0.95"), *paid[1:]] > 0
    assert found["onceward_recent_lateness_seconds", ("quantile", "1"), service, ("source", "stripe")] > 0
    assert found["onceward_redelivery_window_seconds", service, ("source", "stripe")] == 3 * 86400
    assert "made-up-by-a-sender" not in exposition(inbox).decode()


def test_an_unreadable_inbox_is_down_and_not_an_error() -> None:
    with Inbox("postgresql://nobody@127.0.0.1:1/nothing") as inbox:
        assert samples(exposition(inbox)) == {("onceward_up", ""): 0.0}


def test_handlers_are_measured(inbox: Inbox) -> None:
    registry = CollectorRegistry()
    pay(inbox)
    watch_handlers(inbox, registry)

    @inbox.on("waited")
    async def waited(message: Message, tx: Any) -> None:
        del tx
        if message.data["amount"] < 0:
            raise ValueError("no")

    for number, kind in enumerate(("paid", "waited")):
        deliver(inbox, number, kind=kind)
        deliver(inbox, number + 10, kind=kind, amount=-1)
    inbox.drain()
    text = generate_latest(registry).decode()
    for outcome, kind in product(("returned", "failed"), ("paid", "waited")):
        assert re.search(rf'onceward_handler_seconds_count{{.*outcome="{outcome}".*type="{kind}".*}} \d', text)
    assert not any(secret in text for secret in SECRETS)


def test_a_span_continues_the_senders_trace_without_the_payload(inbox: Inbox) -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader])
    instrument(inbox, tracer_provider=tracers, meter_provider=meters)
    pay(inbox)
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    for number, amount in ((1, 5), (2, -987654)):
        data = {"account": "secret-key", "amount": amount}
        inbox.receive(source="stripe", id=f"evt-{number}", type="paid", data=data, headers=headers)
    inbox.drain()
    spans = exporter.get_finished_spans()
    done = next(span for span in spans if span.status.is_ok or span.status.status_code.name == "UNSET")
    failed = next(span for span in spans if span.status.status_code.name == "ERROR")
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    assert (done.name, done.attributes and done.attributes["messaging.message.id"]) == ("process paid", "evt-1")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "Reject"
    assert "987654" not in "".join(span.to_json() for span in spans)
    read = reader.get_metrics_data()
    assert read is not None
    text = read.to_json()
    assert {"onceward.messages", "onceward.handler.duration"} <= set(re.findall(r'"name": "(onceward[^"]*)"', text))
    assert not any(secret in text for secret in SECRETS)
    meters.shutdown()


def test_a_batch_links_to_every_senders_trace(inbox: Inbox) -> None:
    """D45: also the first message's; one that came without a trace has none."""
    exporter = exported(inbox)

    @inbox.on("measured", batch=True)
    def measured(messages: list[Message], tx: Any) -> None:
        del messages, tx

    traces = [f"{number:032x}" for number in (1, 2, 3)]
    for trace in (*traces, None):
        headers = {} if trace is None else {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        inbox.receive(source="meter", id=f"m-{trace}", type="measured", data=1, headers=headers)
    inbox.drain()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == traces
    assert [dict(link.attributes or {}) for link in span.links] == [{MESSAGE_ID: f"m-{trace}"} for trace in traces]
    attributes = dict(span.attributes or {})
    assert (attributes[BATCH_COUNT], MESSAGE_ID in attributes) == (4, False)


def exported(inbox: Inbox, *readers: InMemoryMetricReader) -> InMemorySpanExporter:
    """Where the spans of an inbox's handlers go; its metrics go to the readers."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(inbox, tracer_provider=tracers, meter_provider=MeterProvider(readers, shutdown_on_exit=False))
    return exporter


Points = dict[str, list[tuple[dict[str, Any], int]]]


def points(reader: InMemoryMetricReader) -> Points:
    """The attributes of each point of each metric, and how many calls or messages it counts."""
    read = reader.get_metrics_data()
    assert read is not None
    found: Points = {}
    for metric in (one for resource in read.resource_metrics for s in resource.scope_metrics for one in s.metrics):
        for point in metric.data.data_points:
            count = getattr(point, "count", getattr(point, "value", 0))
            found.setdefault(metric.name, []).append((dict(point.attributes or {}), count))
    return found


def test_the_names_are_those_of_the_messaging_conventions(inbox: Inbox) -> None:
    reader = InMemoryMetricReader()
    exporter = exported(inbox, reader)

    @inbox.on("measured", consumer="meters")
    def measured(message: Message, tx: Any) -> None:
        del tx
        message.send("counted", to="partner")
        if message.data < 0:
            raise Reject("no")

    class Partner:
        def publish(self, message: Message) -> None:
            del message

    inbox.add_sink("partner", Partner())
    sender = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    for number in (1, -1):
        inbox.receive(source="meter", id=f"m{number}", type="measured", data=number, headers=sender)
    inbox.drain()
    common = {names.MESSAGING_SYSTEM: "onceward"}
    process = {
        **common,
        names.MESSAGING_OPERATION_NAME: "process",
        names.MESSAGING_DESTINATION_NAME: "measured",
        names.MESSAGING_CONSUMER_GROUP_NAME: "meters",
    }
    publish = {**common, names.MESSAGING_OPERATION_NAME: "publish", names.MESSAGING_DESTINATION_NAME: "partner"}
    spans = {(span.name, span.kind.name, span.status.status_code.name): span for span in exporter.get_finished_spans()}
    kinds = {("process measured", "CONSUMER", "UNSET"), ("process measured", "CONSUMER", "ERROR")}
    assert set(spans) == {*kinds, ("publish partner", "CLIENT", "UNSET")}
    span = spans["process measured", "CONSUMER", "UNSET"]
    ours = {"onceward.source": "meter", "onceward.attempt": 1}
    one = {names.MESSAGING_OPERATION_TYPE: "process", MESSAGE_ID: "m1"}
    assert (span.attributes or {}).items() >= {**process, **one, **ours}.items()
    assert BATCH_COUNT not in (span.attributes or {})
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]  # its parent, and linked as in a batch
    sent = spans["publish partner", "CLIENT", "UNSET"].attributes or {}
    assert sent.items() >= {**publish, names.MESSAGING_OPERATION_TYPE: "send"}.items()
    found = points(reader)
    handled = [(process, 1), ({**process, "error.type": "Reject"}, 1)]
    for metric, expected in (
        (messaging.MESSAGING_PROCESS_DURATION, handled),
        (messaging.MESSAGING_CLIENT_CONSUMED_MESSAGES, handled),
        (messaging.MESSAGING_CLIENT_OPERATION_DURATION, [(publish, 1)]),
        (messaging.MESSAGING_CLIENT_SENT_MESSAGES, [(publish, 1)]),
    ):
        assert sorted(found[metric], key=str) == sorted(expected, key=str), metric


def test_a_batch_counts_each_of_its_messages(inbox: Inbox) -> None:
    reader = InMemoryMetricReader()
    exported(inbox, reader)

    @inbox.on("measured", batch=True)
    def measured(messages: list[Message], tx: Any) -> None:
        del messages, tx

    for number in range(3):
        inbox.receive(source="meter", id=f"m{number}", type="measured", data=1)
    inbox.drain()
    found = points(reader)
    ((_, calls),) = found[messaging.MESSAGING_PROCESS_DURATION]
    ((_, consumed),) = found[messaging.MESSAGING_CLIENT_CONSUMED_MESSAGES]
    assert (calls, consumed) == (1, 3)


def test_what_is_shipped_uses_metrics_that_exist(inbox: Inbox) -> None:
    registry = CollectorRegistry()
    registry.register(InboxCollector(inbox))
    pay(inbox)
    watch_handlers(inbox, registry)
    inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=3))
    for _ in range(2):
        deliver(inbox, 1)
    inbox.drain()
    perform(inbox.store, lambda: save_activity(inbox.context))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    names = {one.name for family in families for one in family.samples}
    labels = {label for family in families for one in family.samples for label in one.labels}
    dashboard = json.loads((OPS / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += re.findall(r"expr: (.+)", (OPS / "alerts.yml").read_text())
    assert len(queries) >= 20
    runbooks = re.findall(r'runbook: "docs/([^"]+)"', (OPS / "alerts.yml").read_text())
    assert len(runbooks) == (OPS / "alerts.yml").read_text().count("- alert:")
    docs = Path(__file__).parents[2] / "docs"
    assert [name for name in runbooks if not (docs / name).is_file()] == []
    for query in queries:
        used = set(re.findall(r"\bonceward_\w+", query))
        assert used
        assert used <= names, used - names
        assert set(re.findall(r"(\w+)\s*=~?\s*\"", query)) <= labels
    wanted = {"service", "state", "consumer", "type", "outcome", "le", "source", "quantile", "what"}
    assert labels == wanted  # and no id or key among them


class Broken(AbstractContextManager[None]):
    """The surrounding of a hook that fails when it is left."""

    def __exit__(self, *_: object) -> bool:
        raise RuntimeError("the exporter is away")


@pytest.mark.parametrize("fault", ["call", "enter", "exit", "swallow"])
def test_a_hook_can_neither_fail_nor_save_a_message(inbox: Inbox, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    pay(inbox)

    @contextmanager
    def swallowing() -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - what must not help
            return

    def hook(handler: Any, messages: Any) -> AbstractContextManager[Any]:
        del handler
        assert isinstance(messages[0], Message)
        if fault == "call":
            raise RuntimeError("no exporter")
        if fault == "enter":
            return contextmanager(lambda: iter(()))()
        return Broken() if fault == "exit" else swallowing()

    inbox.add_hook(hook)
    inbox.add_hook(lambda *_: nullcontext())
    good, bad = deliver(inbox, 1), deliver(inbox, 2, amount=-1, account="b")
    assert inbox.drain() == 1
    details = [inbox.admin.message(seq) for seq in (good, bad)]
    assert [detail.status for detail in details if detail] == ["done", "dead"]
    assert ("a hook of the handlers failed" in caplog.text) == (fault != "swallow")
