"""How strangers reach an inbox: the public methods of `Inbox` that make web applications of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from onceward.desk import Desk
from onceward.steps.context import Context
from onceward.stores.protocol import Store
from onceward.webhooks import Hooks, Limits, Webhooks

if TYPE_CHECKING:
    from onceward.webhooks import Verifier
    from onceward.webhooks.hooks import Receiver


class Entrance(Desk):
    """Webhooks in."""

    def __init__(self, context: Context, store: Store) -> None:
        super().__init__(context, store)
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

    def _leave(self) -> None:
        for made in self.served:
            made.close()
