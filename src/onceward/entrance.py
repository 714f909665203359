"""How strangers reach an inbox, and how it reaches people: web applications, brokers, alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

from onceward import guarantees, identity
from onceward.alerts import Alerts, Hook, Rules
from onceward.desk import Desk
from onceward.errors import ConfigurationError
from onceward.sources.envelope import Envelope
from onceward.sources.intake import Attendance, Intake
from onceward.sources.protocol import open_source
from onceward.steps.context import Context
from onceward.stores.protocol import Store
from onceward.webhooks import Hooks, Limits, Webhooks

if TYPE_CHECKING:
    from onceward.sources.intake import Receiver as Intaking
    from onceward.webhooks import Verifier
    from onceward.webhooks.hooks import Receiver


class Entrance(Desk):
    """Webhooks and brokers in, alerts out."""

    def __init__(self, context: Context, store: Store) -> None:
        super().__init__(context, store)
        self._intakes: list[Intake] = []
        self._alerts: Alerts | None = None
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
    ) -> None:
        """Take messages from a broker while `run` runs: `inbox.source("redis://host/0?stream=orders", source="shop")`.

        `id` and `type` say where a message carries them: a field, a dotted path, `header:NAME`; `id="position"` is the
        place in the broker (a producer that sends twice has then sent two messages), `type="=order.paid"` the
        type of all. Without them: CloudEvents, or the broker's own properties.
        """
        identity.check_name("source", source)
        if batch < 1:
            raise ConfigurationError(f"batch={batch} must be at least 1")
        self._intakes.append(Intake(open_source(url), Envelope(source, id, type), batch, inline))

    def alert(self, *hooks: Hook, rules: Rules | None = None) -> Alerts:
        """Tell when something needs a person, while `run` runs: dead letters, mismatches, blocked keys, old backlog.

        A hook is a function of an `Alert`; `alerts.http_hook(url, secrets=[...])` makes one, and without any the log is
        told. Of several processes one tells. A program that does not `run` calls `look()` of what this returns.
        """
        self._alerts = Alerts(self, hooks, rules or Rules())
        return self._alerts

    def _check_guarantees(self) -> None:
        """Say what is in force, and refuse to start with less than is declared."""
        guarantees.check(self)

    @contextmanager
    def _attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """Read the sources and look for alerts while the block runs, in threads of their own.

        `stop` is called if reading fails.
        """
        with ExitStack() as stack:
            if self._intakes:
                attendance = Attendance(self._intakes, cast("Intaking", self), stop)
                attendance.start()
                stack.callback(attendance.end, self._context.settings.stop_timeout)
            if self._alerts is not None:
                self._alerts.start()
                stack.callback(self._alerts.stop)
            yield

    def _leave(self) -> None:
        for made in self.served:
            made.close()
