"""Apache Pulsar: a load through it in which its server is killed."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from engines.load import MESSAGES, SETTINGS, TYPE, Load, Report
from onceward import Inbox
from onceward.brokers.protocol import open_sink
from onceward.domain import payload
from onceward.message import Message
from tests.servers import PostgresServer, PulsarServer


class PulsarLoad(Load):
    """Messages that come to the workers' database through a topic."""

    def __init__(self, url: str, address: str, messages: int) -> None:
        super().__init__(url, messages)
        self._address, self._sinks = address, threading.local()
        self._every: list[Any] = []

    def _send(self, inbox: Inbox, number: int) -> bool:
        del inbox
        if not hasattr(self._sinks, "own"):
            self._sinks.own = open_sink(f"{self._address}?topic=load")
            self._every.append(self._sinks.own)
        data = {"number": number, "key": self.key(number)}
        try:
            self._sinks.own.publish(_sent(number, data))
        except OSError as error:
            self.errors.append(error)
            return False
        return True

    def _work(self, worker: int) -> None:  # noqa: ARG002 - all read the same topic
        with closing(Inbox(self._url, settings=SETTINGS)) as inbox:
            inbox.on(TYPE, key="header:pulsar-key")(self.effect)
            inbox.add_source(f"{self._address}?topic=load", source="load")

            def stop() -> None:
                self._fed.wait()
                inbox.stop()

            stopper = threading.Thread(target=stop)
            stopper.start()
            inbox.run()
            stopper.join()

    def close(self) -> None:
        """Disconnect every sender."""
        for sink in self._every:
            sink.close()


def _sent(number: int, data: dict[str, Any]) -> Message:
    return Message(
        id=f"message-{number}",
        source="load",
        type=TYPE,
        version=1,
        data=data,
        body=payload.encode(data),
        headers={},
        key=data["key"],
        seq=number,
        attempt=1,
        received_at=datetime.now(UTC),
        consumer="load",
    )


def pulsar() -> Report:
    """The load."""
    with PostgresServer(durable=True) as store, PulsarServer() as server:
        with closing(PulsarLoad(store.url(), server.address, MESSAGES)) as load:
            verdict = load.play(server.restart)
        return Report("Pulsar", server.version, "kill -9 of the broker, restart", verdict)
