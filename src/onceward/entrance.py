"""How strangers reach an inbox: the public methods of `Inbox` that make web applications of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from onceward.desk import Desk
from onceward.errors import ConfigurationError
from onceward.sinks.protocol import Closable, Sink, open_sink
from onceward.sources.envelope import POSITION, Envelope
from onceward.sources.intake import Attendance, Intake
from onceward.sources.protocol import open_source
from onceward.steps.context import Context
from onceward.steps.prune import declare
from onceward.stores.protocol import Store
from onceward.webhooks import Hooks, Limits, Webhooks

if TYPE_CHECKING:
    from onceward.sources.intake import Receiver as Intaking
    from onceward.webhooks import Verifier
    from onceward.webhooks.hooks import Receiver


class Entrance(Desk):
    """Webhooks and brokers in; brokers out."""

    def __init__(self, context: Context, store: Store) -> None:
        super().__init__(context, store)
        self._intakes: list[Intake] = []
        self._own_sinks: list[Closable] = []
        self.served: list[Webhooks] = []
        """The web applications made so far; `onceward run --http` serves them."""

    def webhooks(self, endpoints: Mapping[str, Verifier], *, limits: Limits | None = None) -> Webhooks:
        """An ASGI application that takes webhooks: `app.mount("/hooks", inbox.webhooks({"/stripe": Stripe(secret)}))`.

        It answers 200 when an event is committed (or was before), 4xx to what is not authentic, and 503 while the
        database is away. `.wsgi` is the same for WSGI, `.wsgi.django("/stripe")` a Django view.
        """
        made = Webhooks(Hooks(cast("Receiver", self), endpoints, limits=limits))
        self.served.append(made)
        return made

    def source(  # noqa: PLR0913 - each is a property of the source
        self,
        url: str,
        *,
        source: str,
        id: str | None = None,  # noqa: A002 - the words every sender uses
        type: str | None = None,  # noqa: A002
        batch: int = 100,
        inline: bool = False,
        redelivers_for: timedelta | None = None,
    ) -> None:
        """Take messages from a broker while `run` runs: `inbox.source("redis://host/0?stream=orders", source="shop")`.

        `id` and `type` say where a message carries them: a field, a dotted path, `header:NAME`; `id="position"` is the
        place in the broker (a producer that sends twice has then sent two messages), `type="=order.paid"` the
        type of all. Without them: CloudEvents, or the broker's own properties. `redelivers_for` says how late the
        broker may deliver a copy, where that is not the usual time.
        """
        if batch < 1:
            raise ConfigurationError(f"batch={batch} must be at least 1")
        opened, envelope = open_source(url), Envelope(source, id, type)
        if id == POSITION and not opened.positions:
            raise ConfigurationError(
                f"{opened.name}: id={id!r} is not possible, messages have no place of their own there"
            )
        declare(self._context, source, opened.redelivery if redelivers_for is None else redelivers_for)
        self._intakes.append(Intake(opened, envelope, batch, inline))

    @contextmanager
    def _attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """Read the sources while the block runs, in a thread of their own; `stop` is called if that fails."""
        if not self._intakes:
            yield
            return
        attendance = Attendance(self._intakes, cast("Intaking", self), stop)
        attendance.start()
        try:
            yield
        finally:
            attendance.end(self._context.settings.stop_timeout)

    def _opened(self, url: str) -> Sink:
        """A sink of the inbox's own: opened by URL, closed with the inbox."""
        self._own_sinks.append(open_sink(url))
        return self._own_sinks[-1]

    def _leave(self) -> None:
        for made in self.served:
            made.close()
        for sink in self._own_sinks:
            sink.close()
