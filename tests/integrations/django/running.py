"""A shop with an inbox in Django's database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Self

from django.db import connection, transaction

from onceward import Message, RetryPolicy
from onceward.admin.messages import MessageDetail
from onceward.integrations.django import DjangoInbox
from onceward.testing.process import apart
from tests.integrations.django.project import database
from tests.integrations.django.shop.models import Line, Order

LATER = RetryPolicy(attempts=2, first=timedelta(hours=1), jitter=0)
Behaviour = Callable[[Message], Any]


class DjangoShop:
    """With two orders."""

    def __init__(self, url: str, **more: Any) -> None:
        self.url = url
        self._ending = ExitStack()
        self._ending.enter_context(database(url, **more))
        with connection.schema_editor() as editor:
            for model in (Order, Line):
                editor.create_model(model)
        self.inbox = self._ending.enter_context(DjangoInbox())
        self.inbox.migrate()
        Order.objects.create(id=1)
        Order.objects.create(id=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def handle(self, behaviour: Behaviour, message_type: str = "t", **options: Any) -> None:
        """Register a handler that takes its message alone."""

        def handler(message: Message) -> Any:
            return behaviour(message)

        self.inbox.on(message_type, **{"retry": LATER, **options})(handler)

    def receive(self, message_id: str, data: Any = None, message_type: str = "t") -> str:
        """Receive a message; answers its status."""
        return self.inbox.receive(source="s", id=message_id, type=message_type, data=data).status

    def deliver(self, *ids: str, data: Any = None, message_type: str = "t") -> int:
        """Receive messages and run what is due; answers how many were finished."""
        for one in ids:
            self.receive(one, data, message_type)
        return self.inbox.drain()

    def orders(self) -> dict[int, int]:
        """What is committed of them, as another thread's connection sees it."""

        def read() -> dict[int, int]:
            try:
                return dict(Order.objects.values_list("id", "paid"))
            finally:
                connection.close()

        return apart(read)

    def paid(self, order: int = 1) -> int:
        """What is committed of one."""
        return self.orders()[order]

    def stored(self) -> set[str]:
        """The ids of the messages that are committed."""

        def read() -> set[str]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT id FROM onceward_ledger")
                found = {bytes(row[0]) for row in cursor.fetchall()}
            connection.close()
            return {one[1:].decode() for one in found if one.startswith(b"r")}  # those of outgoing ones are ours

        return apart(read)

    def detail(self, message_id: str) -> MessageDetail:
        """What is known of a message."""
        (seq,) = self.inbox.admin.find("s", message_id)
        detail = self.inbox.admin.message(seq)
        assert detail is not None
        return detail

    def error(self, message_id: str) -> str:
        """Its last error."""
        return self.detail(message_id).history[-1].error


def pay(message: Message) -> None:
    """One update by the ORM, in a block of its own."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=1)
        order.paid += 1
        order.save()
    if message.data == "fail":
        raise ValueError("after the save")
