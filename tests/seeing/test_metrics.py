"""Metrics, spans and what is shipped for Grafana and Prometheus: the same numbers, the same names, nobody's data."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import onceward
from onceward import Inbox, Message
from onceward.observability.opentelemetry import instrument
from onceward.observability.prometheus import InboxCollector, exposition, watch_handlers
from tests.seeing.conftest import deliver, pay

if TYPE_CHECKING:
    from collections.abc import Iterator

OPS = Path(onceward.__file__).parent / "observability" / "ops"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
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
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(inbox, tracer_provider=tracers)

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


def test_what_is_shipped_uses_metrics_that_exist(inbox: Inbox) -> None:
    registry = CollectorRegistry()
    registry.register(InboxCollector(inbox))
    pay(inbox)
    watch_handlers(inbox, registry)
    deliver(inbox, 1)
    inbox.drain()
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    names = {one.name for family in families for one in family.samples}
    labels = {label for family in families for one in family.samples for label in one.labels}
    dashboard = json.loads((OPS / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += re.findall(r"expr: (.+)", (OPS / "alerts.yml").read_text())
    assert len(queries) >= 20
    for query in queries:
        used = set(re.findall(r"\bonceward_\w+", query))
        assert used
        assert used <= names, used - names
        assert set(re.findall(r"(\w+)\s*=~?\s*\"", query)) <= labels
    wanted = {"service", "state", "consumer", "type", "outcome", "le"}
    assert labels == wanted  # and no id or key among them


class Broken(AbstractContextManager[None]):
    """A watcher's surrounding that fails when it is left."""

    def __exit__(self, *_: object) -> bool:
        raise RuntimeError("the exporter is away")


@pytest.mark.parametrize("fault", ["call", "enter", "exit", "swallow"])
def test_a_watcher_can_neither_fail_nor_save_a_message(
    inbox: Inbox, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    pay(inbox)

    @contextmanager
    def swallowing() -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - what must not help
            return

    def watcher(handler: Any, messages: Any) -> AbstractContextManager[Any]:
        del handler
        assert isinstance(messages[0], Message)
        if fault == "call":
            raise RuntimeError("no exporter")
        if fault == "enter":
            return contextmanager(lambda: iter(()))()
        return Broken() if fault == "exit" else swallowing()

    inbox.watch(watcher)
    inbox.watch(lambda *_: nullcontext())
    good, bad = deliver(inbox, 1), deliver(inbox, 2, amount=-1, account="b")
    assert inbox.drain() == 1
    stories = [inbox.admin.message(seq) for seq in (good, bad)]
    assert [story.status for story in stories if story] == ["done", "dead"]
    assert ("a watcher of handlers failed" in caplog.text) == (fault != "swallow")
