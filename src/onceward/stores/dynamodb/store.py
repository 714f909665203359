"""The DynamoDB store: `dynamodb://region/table`, boto3 for sync code and aiobotocore for async code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, urlsplit
from weakref import WeakKeyDictionary

from onceward.domain import identity
from onceward.errors import ConfigurationError, SchemaMissing
from onceward.flow import ROLLBACK
from onceward.stores import migrate
from onceward.stores.dynamodb.catalog import Catalog
from onceward.stores.dynamodb.claims import Claims
from onceward.stores.dynamodb.effects import Effects
from onceward.stores.dynamodb.failures import translated
from onceward.stores.dynamodb.fan_out import FanOuts
from onceward.stores.dynamodb.inline import Inline
from onceward.stores.dynamodb.items import Layout, encoded_item
from onceward.stores.dynamodb.ledger import Ledger
from onceward.stores.dynamodb.members import Membership
from onceward.stores.dynamodb.operations import Operations
from onceward.stores.dynamodb.polls import Polls
from onceward.stores.dynamodb.queue import Queue
from onceward.stores.dynamodb.recorder import Recorder
from onceward.stores.dynamodb.reports import Reports
from onceward.stores.dynamodb.retention import Retention
from onceward.stores.dynamodb.sessions import AsyncSession, SyncSession
from onceward.stores.dynamodb.unit import Shared, Transact
from onceward.stores.moves.history import HistoryMoves
from onceward.stores.protocol import Capability, StoreOptions, TimeLimits
from onceward.stores.recording import Open

SHARDS = 4
MADE = "0001 the table"


_MAKING = threading.Lock()
"""Sessions of boto3 make one client at a time."""


@cache
def _async_session() -> Any:
    """It reads what it knows of DynamoDB once."""
    from aiobotocore.session import get_session  # noqa: PLC0415 - a driver

    return get_session()


class DynamoMoves:
    """The moves, by subject."""

    def __init__(self, base: Shared) -> None:
        self.catalog, self.ledger = Catalog(base), Ledger(base)
        self.claims, self.queue, self.inline = Claims(base), Queue(base), Inline(base)
        self.fan_out, self.membership = FanOuts(base), Membership(base)
        self.operations, self.effects, self.polls = Operations(base), Effects(base), Polls(base)
        self.retention, self.reports = Retention(base), Reports(base)

    @property
    def history(self) -> HistoryMoves:
        """None: each write of it would be paid for (capability `history`)."""
        raise ConfigurationError("DynamoDB keeps no history of rates and durations; read the metrics instead")


class DynamoStore:
    """An inbox in a table of DynamoDB."""

    dialect = "dynamodb"
    connections = (
        "onceward.stores.dynamodb.recorder.SyncRecorder",
        "onceward.stores.dynamodb.recorder.AsyncRecorder",
    )
    single_writer = False
    capabilities: frozenset[Capability] = frozenset({"durability"})

    def __init__(self, region: str, table: str, *, endpoint: str | None, shards: int, options: StoreOptions) -> None:
        self.prefix = options.prefix
        self.table, self.region, self._endpoint = table, region, endpoint
        self.url = f"dynamodb://{region}/{table}" + (f"?endpoint={endpoint}" if endpoint else "")
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1000
        """Microseconds since 1970."""
        self._base = Shared(Layout(table, options.prefix, shards), lambda: self.clock())  # noqa: PLW0108 - may be set
        self._pool = options.pool
        self._client: Any = None
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._wakes: set[Callable[[], None]] = set()

    def moves(self, limits: TimeLimits) -> DynamoMoves:  # noqa: ARG002 - the client has its own
        """What steps may ask of it."""
        return DynamoMoves(self._base)

    # Clients

    def client(self) -> Any:
        """The client of boto3 that all threads share; it is of boto3's default session, as yours are."""
        import boto3  # noqa: PLC0415 - a driver
        from botocore.config import Config  # noqa: PLC0415 - a driver

        with _MAKING:
            if self._client is None:
                self._client = boto3.client(
                    "dynamodb", region_name=self.region, endpoint_url=self._endpoint, config=Config(**self._limits())
                )
            return self._client

    def _limits(self) -> dict[str, Any]:
        retries = {"max_attempts": 3, "mode": "standard"}
        pool = max(self._pool, 50)
        return {"max_pool_connections": pool, "connect_timeout": 5, "read_timeout": 15, "retries": retries}

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Do something with boto3."""
        return getattr(self.client(), operation)(**arguments)

    async def async_ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Do something with aiobotocore."""
        return await getattr(await self._async_client(), operation)(**arguments)

    async def _async_client(self) -> Any:
        loop = asyncio.get_running_loop()
        making = self._async_clients.get(loop)
        if making is None:
            making = self._async_clients[loop] = asyncio.ensure_future(self._make_async_client())
        return (await asyncio.shield(making))[1]

    async def _make_async_client(self) -> tuple[Any, Any]:
        from aiobotocore.config import AioConfig  # noqa: PLC0415 - a driver

        context = _async_session().create_client(
            "dynamodb", region_name=self.region, endpoint_url=self._endpoint, config=AioConfig(**self._limits())
        )
        return context, await context.__aenter__()

    # Sessions

    def connect(self) -> SyncSession:
        return SyncSession(self.ask)

    async def async_connect(self) -> AsyncSession:
        own = OwnClient(self._make_async_client)
        return AsyncSession(own.ask, own.close)

    @contextmanager
    def session(self) -> Iterator[SyncSession]:
        session = self.connect()
        try:
            yield session
        finally:
            session.close()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncSession]:
        session = AsyncSession(self.async_ask)
        try:
            yield session
        finally:
            session.abandon()

    def check_caller(self) -> None:
        """Nothing to refuse: a handler's transaction is in no one else's way."""

    def check_async(self) -> None:
        if find_spec("aiobotocore") is None:
            raise ConfigurationError(
                "async handlers on DynamoDB need aiobotocore. Install it: pip install 'onceward[dynamodb]'"
            )

    def join(self, tx: Any) -> SyncSession:
        raise ConfigurationError(f"DynamoDB cannot join {tx!r}: it has no transactions of a caller's own")

    def async_join(self, tx: Any) -> AsyncSession:
        raise ConfigurationError(f"DynamoDB cannot join {tx!r}: it has no transactions of a caller's own")

    @contextmanager
    def raw(self) -> Iterator[Recorder]:
        """A recorder as handlers get it, committed at the end of the block."""
        session = self.connect()
        session.perform(Open())
        with session.lent() as tx:
            yield tx
        session.perform(Transact((), ends_tx=True))
        session.perform(ROLLBACK)

    # Waking up: this process alone, others poll

    def notify(self) -> None:
        for wake in list(self._wakes):
            wake()

    def watch(self, wake: Callable[[], None]) -> DynamoListener:
        self._wakes.add(wake)
        return DynamoListener(lambda: self._wakes.discard(wake))

    # The table

    def migrate(self) -> list[str]:
        """Make the table, if it is not there."""
        made = []
        client = self.client()
        try:
            client.describe_table(TableName=self.table)
        except client.exceptions.ResourceNotFoundException:
            try:
                client.create_table(**self._definition())
                made = [MADE]
            except client.exceptions.ResourceInUseException:  # another process makes it
                pass
        except Exception as error:
            raise translated(error) from error
        client.get_waiter("table_exists").wait(TableName=self.table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        self._expire(client)
        self._begin(client)
        return made

    def _expire(self, client: Any) -> None:
        described = client.describe_time_to_live(TableName=self.table)
        if described["TimeToLiveDescription"].get("TimeToLiveStatus") in (None, "DISABLED"):
            client.update_time_to_live(
                TableName=self.table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
            )

    def _begin(self, client: Any) -> None:
        item = {**self._base.layout.version._asdict(), "version": identity.new_number(), "folder": identity.new_id()}
        try:
            client.put_item(
                TableName=self.table, Item=encoded_item(item), ConditionExpression="attribute_not_exists(pk)"
            )
        except client.exceptions.ConditionalCheckFailedException:  # it has begun already
            return

    def _definition(self) -> dict[str, Any]:
        return {
            "TableName": self.table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        }

    def make_missing(self) -> None:
        """Nothing: a table costs money, so an operator says that it is to be made."""

    def migration_sql(self) -> str:
        raise ConfigurationError(
            "DynamoDB has no SQL: `onceward migrate` makes the table, and docs/dynamodb.md shows it for templates"
        )

    def check_schema(self) -> list[str]:
        try:
            answer = self.ask(
                "get_item",
                {"TableName": self.table, "Key": encoded_item(self._base.layout.version._asdict())},
            )
        except Exception as error:
            raise translated(error) from error
        if "Item" not in answer:
            raise SchemaMissing(
                f"the table {self.table} has no inbox with the prefix {self.prefix!r}; create it with: "
                f"{migrate.command(self.url, self.prefix)} (or inbox.migrate())"
            )
        return []

    def findings(self, _destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        if self._endpoint is None or "amazonaws.com" in self._endpoint:
            return ()
        return [
            (
                "warning",
                (
                    f"the endpoint {self._endpoint} is not Amazon's: DynamoDB Local and moto lose acknowledged writes "
                    "when they are killed, so nothing here says that messages outlive it"
                ),
                "use them for tests alone",
            )
        ]

    def close(self) -> None:
        with _MAKING:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def async_close(self) -> None:
        making = self._async_clients.pop(asyncio.get_running_loop(), None)
        if making is not None:
            context, _ = await making
            await context.__aexit__(None, None, None)


class OwnClient:
    """The client of one worker's session, which ends with it: its event loop may end with it, too."""

    def __init__(self, make: Callable[[], Awaitable[tuple[Any, Any]]]) -> None:
        self._make = make
        self._made: tuple[Any, Any] | None = None

    async def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Do something."""
        if self._made is None:
            self._made = await self._make()
        return await getattr(self._made[1], operation)(**arguments)

    async def close(self) -> None:
        """Close its connections."""
        made, self._made = self._made, None
        if made is not None:
            await made[0].__aexit__(None, None, None)


class DynamoListener:
    """A running watch for new messages."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close


def parsed(url: str, options: StoreOptions) -> DynamoStore:
    """The store behind a URL: `dynamodb://region/table?endpoint=http://localhost:8000&shards=4`."""
    parts = urlsplit(url)
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = sorted(asked.keys() - {"endpoint", "shards"})
    table = parts.path.strip("/")
    if unknown or not parts.netloc or not table or "/" in table:
        raise ConfigurationError(
            f"{url!r} is not dynamodb://region/table, with endpoint= and shards= as its only options"
            + (f"; it has {', '.join(unknown)}" if unknown else "")
        )
    shards = asked.get("shards", str(SHARDS))
    if not shards.isdigit() or not 1 <= int(shards) <= 64:  # noqa: PLR2004 - each look asks all of them
        raise ConfigurationError(f"shards={shards!r} must be a number from 1 to 64")
    return DynamoStore(parts.netloc, table, endpoint=asked.get("endpoint"), shards=int(shards), options=options)
