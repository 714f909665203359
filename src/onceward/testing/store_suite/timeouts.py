"""Handlers that run too long."""

from __future__ import annotations

from onceward import Message
from onceward.testing.store_suite.behaviour import Steps, wrote
from onceward.testing.store_suite.shop import Shop


class Timeouts:
    """Handlers that run too long."""

    def test_a_handlers_own_timeout_error_is_its_own(self, shop: Shop) -> None:
        """A TimeoutError of some client inside the handler is an ordinary failure, not ours."""

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            if message.attempt == 1:
                raise TimeoutError("the bank did not answer")

        shop.handle(behaviour=behaviour, timeout=30)
        shop.receive("m1")
        shop.drain()
        assert shop.error("m1") == "TimeoutError: the bank did not answer"
        shop.finish()
        assert shop.effects() == ["m1"]
