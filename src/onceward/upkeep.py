"""What keeps the tables small for years: the public methods of `Inbox` for retention.

Running workers do this by themselves (`Settings.upkeep`); each method here does it now, and is safe beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceward import identity
from onceward.desk import Desk
from onceward.errors import ConfigurationError
from onceward.flow import Wait
from onceward.steps.prune import Pruned, Sweep, check_window, prune
from onceward.stores.protocol import Session
from onceward.transact import perform


class Upkeep(Desk):
    """Retention."""

    def source(self, name: str, *, redelivers_for: timedelta) -> None:
        """Say how long after the first delivery a source may still send a copy: `source("sqs", redelivers_for=...)`.

        A dedupe retention that is shorter is refused, here and wherever a program starts on the same tables.
        """
        identity.check_name("source", name)
        if redelivers_for < timedelta(0):
            raise ConfigurationError(f"source {name!r}: redelivers_for={redelivers_for} cannot be negative")
        check_window(self._context, name, redelivers_for)
        self._context.registry.sources[name] = redelivers_for

    def prune(self, *, progress: Callable[[Pruned], None] | None = None) -> Pruned:
        """Remove what is older than the retention, in small batches; `progress` is told after each of them.

        Never touches what is unfinished, dead, in an open case of quarantine or under an effect of unknown outcome.
        """
        sweep = Sweep(told=progress or (lambda _: None))
        perform(self._store, lambda: prune(self._context, sweep), _resting)
        return sweep.pruned


def _resting(session: Session) -> Callable[[Any], Any]:
    """A performer that can wait, which a session by itself cannot."""

    def performer(request: Any) -> Any:
        return time.sleep(request.seconds) if isinstance(request, Wait) else session.perform(request)

    return performer
