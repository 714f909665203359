"""How `check` looks at an effect: with the driver's connection, a Session, or by itself, as with Django's ORM.

As for handlers, the annotation of its parameter says what it wants; what it wants is there for one look.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from onceward.domain.annotations import alternatives, signature_of
from onceward.domain.parameters import HandlerTransaction
from onceward.inbox import Inbox

Check = Callable[..., Any]


def looking(inbox: Inbox, check: Check) -> Callable[[Any], Any]:
    """A function of a plain connection that calls `check` as it wants to be called."""
    signature = signature_of(check)
    if signature is None:
        return check
    if not signature.parameters:
        return lambda _: check()
    first = next(iter(signature.parameters.values()))
    wanted = [] if first.annotation is inspect.Parameter.empty else alternatives(first.annotation, check)
    for one in wanted:
        provider = inbox.context.registry.providers.provider_of(one)
        if provider is not None:
            provider.check("check=", one, is_async=False)
            return _opening(provider, one, check)
    return check


def _opening(provider: Any, wanted: Any, check: Check) -> Callable[[Any], Any]:
    def look(connection: Any) -> Any:
        with provider.opened(HandlerTransaction(connection, [], wanted)) as opened:
            return check(opened)

    return look
