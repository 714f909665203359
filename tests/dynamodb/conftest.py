"""Tables at DynamoDB Local, or at moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward import Inbox
from tests.dynamodb.place import DynamoPlace
from tests.servers import DynamoServer


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any will do, but there must be some."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "shop")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def place(dynamo_server: DynamoServer) -> DynamoPlace:
    """A table of this test's own."""
    return DynamoPlace(dynamo_server.address)


@pytest.fixture
def inbox(place: DynamoPlace) -> Iterator[Inbox]:
    """An inbox on it."""
    with Inbox(place.url) as made:
        made.migrate()
        place.prepare(made)
        yield made
