"""The private servers do what the other tests rely on: start, die for real, recover, and fail on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.servers import install
from tests.servers.__main__ import main as servers_main
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import FaultProxy, PostgresServer

CHECKOUT = Path(__file__).parents[2]


def test_a_server_starts_and_each_database_is_fresh(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.info.server_version >= 130_000
        assert connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone() == (0,)
        connection.execute("CREATE TABLE trace (id int)")
    other = postgres_server.create_database("another")
    try:
        with psycopg.connect(other) as connection:
            assert connection.execute("SELECT to_regclass('trace')").fetchone() == (None,)
    finally:
        postgres_server.drop_database("another")


def test_a_database_can_be_made_from_a_template(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE trace (id int)")
    template = postgres_url.rpartition("/")[2]
    copy = postgres_server.create_database("copied", template=template)
    try:
        with psycopg.connect(copy) as connection:
            assert connection.execute("SELECT count(*) FROM trace").fetchone() == (0,)
    finally:
        postgres_server.drop_database("copied")


def test_a_committed_row_survives_kill_9_and_an_uncommitted_one_does_not(
    private_postgres: PostgresServer,
) -> None:
    with psycopg.connect(private_postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO kept VALUES (2)")
        first = private_postgres.pid
        private_postgres.kill()
        assert not private_postgres.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    private_postgres.restart()
    assert private_postgres.pid != first
    with psycopg.connect(private_postgres.url()) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]
    assert "database system was not properly shut down" in private_postgres.log()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_server_comes_back_on_its_port(private_postgres: PostgresServer, mode: str) -> None:
    url = private_postgres.url()
    private_postgres.stop("fast" if mode == "fast" else "immediate")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)
    private_postgres.start()
    psycopg.connect(url).close()


def test_sqlite_and_postgres_take_turns(store_url: str) -> None:
    assert store_url.partition(":")[0] in {"sqlite", "postgresql"}


def test_the_proxy_forwards_cuts_and_heals(postgres_proxy: FaultProxy, proxied_postgres_url: str) -> None:
    with psycopg.connect(proxied_postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        postgres_proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(proxied_postgres_url)
    postgres_proxy.heal()
    psycopg.connect(proxied_postgres_url).close()


def test_the_proxy_leads_elsewhere_after_a_failover(postgres_proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with socket.create_connection(("127.0.0.1", postgres_proxy.port)) as old:
            postgres_proxy.lead_to("127.0.0.1", other.getsockname()[1])
            with pytest.raises(ConnectionResetError):
                old.recv(1)
        with socket.create_connection(("127.0.0.1", postgres_proxy.port)):
            other.accept()[0].close()


def test_a_cut_is_a_reset(postgres_proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing that its asyncio would complain of."""
    with socket.create_connection(("127.0.0.1", postgres_proxy.port)) as client:
        client.sendall(bytes.fromhex("0000000804d2162f"))  # SSLRequest, answered by one byte
        assert client.recv(1) in {b"N", b"S"}
        postgres_proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_frozen_proxy_holds_everything_back_until_it_thaws(
    postgres_proxy: FaultProxy, proxied_postgres_url: str, postgres_url: str
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(proxied_postgres_url, autocommit=True) as frozen,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as observer,
    ):
        await frozen.execute("CREATE TABLE trace (id int)")
        postgres_proxy.freeze()
        request = asyncio.create_task(frozen.execute("INSERT INTO trace VALUES (1)"))

        async def sent() -> bool:
            return frozen.pgconn.transaction_status == TransactionStatus.ACTIVE

        await wait_until_async(sent, message="the request to leave the client")
        cursor = await observer.execute("SELECT count(*) FROM trace")
        assert await cursor.fetchone() == (0,)
        assert not request.done()

        postgres_proxy.thaw()
        await request
        cursor = await observer.execute("SELECT count(*) FROM trace")
        assert await cursor.fetchone() == (1,)


@pytest.mark.parametrize(("fault", "kept"), [("drop_reply_after", 1), ("drop_request_with", 0)])
def test_a_lost_commit_and_a_lost_reply_look_alike_to_the_client(
    postgres_proxy: FaultProxy, proxied_postgres_url: str, postgres_url: str, fault: str, kept: int
) -> None:
    arm: Callable[[bytes], None] = getattr(postgres_proxy, fault)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE trace (id int)")
    connection = psycopg.connect(proxied_postgres_url)
    connection.execute("INSERT INTO trace VALUES (1)")
    arm(b"COMMIT")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    connection.close()
    assert postgres_proxy.hits == 1
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM trace").fetchone() == (kept,)
    # The fault struck once: the next commit goes through.
    with psycopg.connect(proxied_postgres_url) as connection:
        connection.execute("INSERT INTO trace VALUES (2)")
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM trace").fetchone() == (kept + 1,)


def test_pgbouncer_pools_by_transaction(pgbouncer_url: str, postgres_url: str) -> None:
    with psycopg.connect(pgbouncer_url, prepare_threshold=None, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        with connection.transaction():
            mine = connection.execute("SELECT pg_backend_pid(), pg_current_xact_id()").fetchone()
            assert connection.execute("SELECT pg_backend_pid(), pg_current_xact_id()").fetchone() == mine
        # Between transactions a second client is served by the very backend the first one used.
        with psycopg.connect(pgbouncer_url, prepare_threshold=None, autocommit=True) as other:
            assert mine is not None
            assert other.execute("SELECT pg_backend_pid()").fetchone() == (mine[0],)
    with psycopg.connect(postgres_url) as direct:
        assert direct.execute("SELECT current_database()").fetchone() == (postgres_url.rpartition("/")[2],)


# It waits for its standard input to close, so that it too ends when the test that started it is killed.
_VICTIM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in whatever was started in the background
from tests.servers import PostgresServer, PgBouncer
server = PostgresServer().start()
pooler = PgBouncer(server).start()
print(server.pid, pooler._process.pid, server._process.folder, pooler._process.folder, flush=True)
sys.stdin.read()
"""


# RabbitMQ is a script, an Erlang below it, and a port mapper that would like to be a daemon.
_RABBIT_VICTIM = """
import sys
from tests.servers import RabbitServer
from tests.servers.process import _stopped_family
import os, signal
server = RabbitServer().start()
family = _stopped_family(server._process.pid)
os.kill(server._process.pid, signal.SIGCONT)
print(*family, server._mapper.pid, server.folder, server._mapper.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("PostgreSQL", "PgBouncer", "RabbitMQ")
@pytest.mark.parametrize(
    ("program", "ending"),
    [
        (_VICTIM, signal.SIGKILL),
        (_VICTIM, signal.SIGTERM),
        (_VICTIM, signal.SIGINT),
        (_RABBIT_VICTIM, signal.SIGKILL),
    ],
    ids=["SIGKILL", "SIGTERM", "SIGINT", "RabbitMQ"],
)
def test_nothing_is_left_of_a_test_process_that_dies(program: str, ending: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as victim:
        assert victim.stdout is not None
        *processes, server_folder, pooler_folder = victim.stdout.readline().split()
        victim.send_signal(ending)
        victim.wait()
    wait_until(lambda: not any(_exists(int(process)) for process in processes), message="the servers to end")
    wait_until(
        lambda: not Path(server_folder).exists() and not Path(pooler_folder).exists(),
        message="the folders to go",
    )


def test_a_missing_server_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(install.ServerMissing, match="apt-get install no-such-package"):
        install.ensure("no-such-package", probe=lambda: None)


@pytest.mark.parametrize("ci", ["true", ""])
def test_without_root_all_that_is_missing_is_named_at_once_and_is_an_error_only_in_ci(
    ci: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """E15: a plain user without any server, and with one that is there."""
    there = [one for one in install.SERVERS if one.name == "PgBouncer"]
    gone = [one._replace(get=_missing, find=lambda: None) for one in install.SERVERS if one not in there]
    monkeypatch.setattr(install, "SERVERS", (*there, *gone))
    monkeypatch.setattr(install, "java_program", _missing)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("ONCEWARD_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    install.absent.cache_clear()
    try:
        assert servers_main([]) == (1 if ci else 0)
        said = capsys.readouterr().out
        absent = "PostgreSQL, MariaDB, Redis, NATS, RabbitMQ, Mosquitto, Pub/Sub, AsyncAPI's schema, DynamoDB Local"
        assert f"missing: {absent}, Chromium. Get all of them: " in said
        packages = "postgresql mariadb-server redis-server nats-server rabbitmq-server mosquitto golang-go"
        assert f"apt-get install {packages}" in said
        assert bool(install.absent("PostgreSQL")) == (not ci)
        assert not install.absent("PgBouncer")
    finally:
        install.absent.cache_clear()


def _missing() -> Path:
    raise install.ServerMissing("gone")


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.needs("PostgreSQL")
def test_where_kafka_cannot_be_fetched_its_cases_are_named_and_the_mock_cluster_plays_the_others(
    tmp_path: Path,
) -> None:
    """As where Maven Central is out of reach: an empty cache, and a Maven that may not ask anybody."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEWARD_", "PYTEST_"))}
    environment |= {
        "ONCEWARD_TEST_CACHE": str(tmp_path / "cache"),
        "MAVEN_ARGS": f"--offline -Dmaven.repo.local={tmp_path / 'repository'}",
    }

    def answer(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    missing = f"Kafka {install.KAFKA.version} could not be fetched with Maven"
    assert f"librdkafka's mock cluster ({missing})" in answer("tests.servers", "java")
    case = "test_a_producer_that_sends_twice_has_sent_once"
    said = answer("pytest", "-q", "-p", "no:cacheprovider", "tests/sources/test_contract.py", "-k", f"kafka and {case}")
    assert "1 passed" in said
    assert f"{missing}; librdkafka's mock cluster stands in: 1 case: {case}[kafka-postgres]" in said
