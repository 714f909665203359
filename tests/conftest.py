"""Fixtures every test may use: a fresh database on each store, on real servers.

Invariant: no two tests share what is in a database, and a server is started only when a test asks for it. Each
pytest-xdist worker has its own PostgreSQL cluster; what was used is reported at the end of the run.
"""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests import brokers_record
from tests.nursery import Nursery
from tests.servers import (
    DynamoServer,
    FaultProxy,
    KafkaMock,
    KafkaServer,
    MariadbServer,
    MosquittoServer,
    MotoServer,
    NatsServer,
    PgBouncer,
    PostgresServer,
    PubsubServer,
    PulsarServer,
    RabbitServer,
    RedisServer,
)
from tests.servers.foreign import ForeignServer, foreign
from tests.servers.limits import LEFT_OUT, broker_of, leave_out, summary, why_not
from tests.servers.prepared import Prepared
from tests.stores import USUAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A run in the background begins with SIGINT ignored, and so would every process that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

_USED = pytest.StashKey[Counter[str]]()
_database_numbers = itertools.count(1)
_empty_databases: list[str] = []
"""Of this worker's cluster: nobody uses them and nothing is in them."""
_pooled_databases: set[str] = set()
"""Those to which PgBouncer keeps connections, so that they are not used again."""


@pytest.fixture(scope="session")
def warm_nursery() -> Iterator[Nursery]:
    """The process that all children of this test process come from."""
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def nursery(warm_nursery: Nursery) -> Iterator[Nursery]:
    """Starts children; what a test leaves running is killed after it."""
    yield warm_nursery
    warm_nursery.clear()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """The worker's own cluster, shared by its tests: create databases in it, but leave it standing."""
    with PostgresServer() as server:
        _note(pytestconfig, f"PostgreSQL {server.version}")
        yield server


@pytest.fixture
def private_postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A durable cluster for this test alone, to stop, kill and restart at will."""
    with PostgresServer(durable=True) as server:
        _note(pytestconfig, f"PostgreSQL {server.version}")
        yield server


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of an empty database; emptied after the test, for the next one."""
    if _empty_databases:
        name = _empty_databases.pop()
    else:
        name = f"test_{next(_database_numbers)}"
        postgres_server.create_database(name)
    yield name
    if name in _pooled_databases:
        postgres_server.drop_database(name)
    else:
        postgres_server.empty_database(name)
        _empty_databases.append(name)


@pytest.fixture(scope="session")
def prepared(postgres_server: PostgresServer) -> Prepared:
    """Databases of the worker's cluster that have the tables already."""
    return Prepared(postgres_server)


@pytest.fixture
def prepared_database(prepared: Prepared) -> Iterator[str]:
    """The name of a database with onceward's tables and nothing in them, for folders that take it as theirs."""
    name = prepared.take()
    yield name
    if name in _pooled_databases:
        prepared.drop(name)
    else:
        prepared.put_back(name)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_database: str) -> str:
    """The address of a fresh, empty PostgreSQL database."""
    return postgres_server.url(postgres_database)


def _mariadb() -> MariadbServer:
    """MariaDB, or the server of its family that `make engines` plays."""
    which = os.environ.get("ONCEWARD_MYSQL")
    if not which:
        return MariadbServer()
    from tests.servers.mysql import Mariadb11Server, MysqlServer, TidbServer  # noqa: PLC0415 - of `make engines` alone

    return {"mysql": MysqlServer, "mariadb11": Mariadb11Server, "tidb": TidbServer}[which]()


@pytest.fixture(scope="session")
def mariadb_server(pytestconfig: pytest.Config) -> Iterator[MariadbServer]:
    """The worker's own MariaDB, shared by its tests: create databases in it, but leave it standing."""
    with _mariadb() as server:
        _note(pytestconfig, f"{server.name} {server.version}")
        yield server


@pytest.fixture
def private_mariadb(pytestconfig: pytest.Config) -> Iterator[MariadbServer]:
    """A durable MariaDB for this test alone, to stop, kill and restart at will."""
    with MariadbServer(durable=True) as server:
        _note(pytestconfig, f"MariaDB {server.version}")
        server.create_database("test")
        yield server


@pytest.fixture
def mariadb_database(mariadb_server: MariadbServer) -> Iterator[str]:
    """The name of an empty database; dropped after the test."""
    name = f"test_{next(_database_numbers)}"
    mariadb_server.create_database(name)
    yield name
    mariadb_server.drop_database(name)


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer, mariadb_database: str) -> str:
    """The address of a fresh, empty database of MariaDB."""
    return mariadb_server.url(mariadb_database)


@pytest.fixture(scope="session")
def pgbouncer_server(pytestconfig: pytest.Config, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of the worker's cluster."""
    with PgBouncer(postgres_server) as pooler:
        _note(pytestconfig, f"PgBouncer {pooler.version}")
        yield pooler


@pytest.fixture
def pgbouncer_url(pgbouncer_server: PgBouncer, postgres_database: str) -> str:
    """The address, behind PgBouncer, of the database `postgres_url` leads to directly."""
    _pooled_databases.add(postgres_database)
    return pgbouncer_server.url(postgres_database)


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[RedisServer | ForeignServer]:
    """The worker's own Redis, shared by its tests; or the user's."""
    if found := foreign("redis"):
        yield found
        return
    with RedisServer() as server:
        _note(pytestconfig, f"Redis {server.version}")
        yield server


@pytest.fixture(scope="session")
def nats_server(pytestconfig: pytest.Config) -> Iterator[NatsServer | ForeignServer]:
    """The worker's own NATS server, shared by its tests; or the user's."""
    if found := foreign("nats"):
        yield found
        return
    with NatsServer() as server:
        _note(pytestconfig, f"NATS {server.version}")
        yield server


@pytest.fixture(scope="session")
def kafka_mock(pytestconfig: pytest.Config) -> Iterator[KafkaMock]:
    """The worker's own cluster of librdkafka's, shared by its tests."""
    with KafkaMock() as server:
        _note(pytestconfig, f"Kafka (librdkafka's mock cluster {server.version})")
        yield server


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer | ForeignServer]:
    """The worker's own Kafka, shared by its tests; or the user's."""
    if found := foreign("kafka"):
        yield found
        return
    with KafkaServer() as server:
        _note(pytestconfig, f"Kafka {server.version}")
        yield server


@pytest.fixture(scope="session")
def rabbit_server(pytestconfig: pytest.Config) -> Iterator[RabbitServer]:
    """The worker's own RabbitMQ, shared by its tests."""
    with RabbitServer() as server:
        _note(pytestconfig, f"RabbitMQ {server.version}")
        yield server


@pytest.fixture(scope="session")
def moto_server(pytestconfig: pytest.Config) -> Iterator[MotoServer]:
    """The worker's own S3 and SQS, shared by its tests."""
    with MotoServer() as server:
        _note(pytestconfig, f"Amazon (moto {server.version})")
        yield server


@pytest.fixture(scope="session")
def dynamo_server(pytestconfig: pytest.Config) -> Iterator[DynamoServer]:
    """The worker's own DynamoDB Local, shared by its tests."""
    with DynamoServer(in_memory=True) as server:
        _note(pytestconfig, f"DynamoDB Local {server.version}")
        yield server


@pytest.fixture(scope="session")
def sqs_server(request: pytest.FixtureRequest) -> MotoServer | ForeignServer:
    """The worker's own SQS; or the user's."""
    private: MotoServer | ForeignServer = foreign("sqs") or request.getfixturevalue("moto_server")
    return private


@pytest.fixture(scope="session")
def pubsub_server(pytestconfig: pytest.Config) -> Iterator[PubsubServer | ForeignServer]:
    """The worker's own Pub/Sub, shared by its tests; or the user's emulator."""
    if found := foreign("pubsub"):
        yield found
        return
    with PubsubServer() as server:
        _note(pytestconfig, f"Pub/Sub ({server.version})")
        yield server


@pytest.fixture(scope="session")
def pulsar_server(pytestconfig: pytest.Config) -> Iterator[PulsarServer]:
    """The worker's own Pulsar, shared by its tests."""
    with PulsarServer() as server:
        _note(pytestconfig, f"Pulsar {server.version}")
        yield server


@pytest.fixture(scope="session")
def mosquitto_server(pytestconfig: pytest.Config) -> Iterator[MosquittoServer]:
    """The worker's own Mosquitto, shared by its tests."""
    with MosquittoServer() as server:
        _note(pytestconfig, f"Mosquitto {server.version}")
        yield server


@pytest.fixture
def postgres_proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    """A fault proxy in front of the worker's cluster."""
    with FaultProxy("127.0.0.1", postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied_postgres_url(postgres_proxy: FaultProxy, postgres_database: str) -> str:
    """The address, behind `postgres_proxy`, of the database `postgres_url` leads to directly."""
    return f"postgresql://postgres@127.0.0.1:{postgres_proxy.port}/{postgres_database}"


@pytest.fixture
def sqlite_url(pytestconfig: pytest.Config, tmp_path: Path) -> str:
    """The address of a SQLite file that does not exist yet."""
    _note(pytestconfig, f"SQLite {sqlite3.sqlite_version}")
    return f"sqlite:///{tmp_path / 'inbox.db'}"


@pytest.fixture(params=USUAL)
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh store, once for each kind."""
    # Asked for by name, so that the SQLite half of a test starts no PostgreSQL.
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


# What was used is counted, and what is not played noted, where the tests run, and both are shown where the summary is
# printed: under pytest-xdist these are different processes, and what workers know travels in `workeroutput`.


def pytest_configure(config: pytest.Config) -> None:
    """Make room for the count, and for the record of the brokers' contracts where one is wanted."""
    config.stash[_USED] = Counter()
    config.stash[LEFT_OUT] = {}
    if brokers_record.FILE in os.environ:
        config.pluginmanager.register(brokers_record.Record())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what was chosen to run, leave out what the servers of this run cannot do.

    The cases of a broker stand together, and first: then few workers have to start it, and nobody waits for one at the
    end.
    """
    reasons = {item: why for item in items if (why := why_not(item))}
    leave_out(config, items, reasons)
    items.sort(key=lambda item: broker_of(item) or "~")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: send the count and the reasons to the controller."""
    if hasattr(session.config, "workeroutput"):
        used = session.config.stash[_USED]
        session.config.workeroutput["servers"] = dict(used)
        session.config.workeroutput["left out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001
    """In the controller: add a worker's count; a worker that crashed has none to send."""
    used: Counter[str] = node.config.stash[_USED]
    sent: dict[str, dict[str, Any]] = getattr(node, "workeroutput", {})
    used.update(sent.get("servers", {}))
    node.config.stash[LEFT_OUT].update(sent.get("left out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which servers the tests ran against, so that a green run shows what it proved."""
    used = config.stash[_USED]
    if used:
        terminalreporter.section("servers")
        for name in sorted(used):
            terminalreporter.line(name if name.startswith("SQLite") else f"{name}, private instances: {used[name]}")
    left_out = config.stash[LEFT_OUT]
    if left_out:
        terminalreporter.section("not played")
        for line in summary(left_out):
            terminalreporter.line(line)


def _note(config: pytest.Config, server: str) -> None:
    config.stash[_USED][server] += 1
