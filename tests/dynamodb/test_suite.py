"""The shipped suite on DynamoDB: some of it in every run, all of it with ONCEWARD_DYNAMODB=all."""

from __future__ import annotations

import pytest

from onceward.testing.store_suite import StoreSuite
from tests.dynamodb.place import DynamoPlace
from tests.servers import DynamoServer


class TestDynamo(StoreSuite):
    """Every promise, on DynamoDB Local."""

    # A crash case loses the connection at every one of a hundred requests, to a server that takes ten times as long.
    pytestmark = pytest.mark.timeout(900)

    @pytest.fixture
    def dynamo_place(self, dynamo_server: DynamoServer) -> DynamoPlace:
        """A table of this test's own; by this name a case is known as one of the suite."""
        return DynamoPlace(dynamo_server.address)

    @pytest.fixture
    def place(self, dynamo_place: DynamoPlace) -> DynamoPlace:
        """The same."""
        return dynamo_place
