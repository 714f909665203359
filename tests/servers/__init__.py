"""Private servers for the tests: real ones, owned by the test run, free to be killed.

Invariant: a server here listens on loopback only, on a port of its own, keeps its files in a folder of its
own, and is gone, with its folder, when the test process is gone, however that ended.
"""

from tests.servers.nats import NatsServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server

__all__ = ["FaultProxy", "NatsServer", "PgBouncer", "PostgresServer", "RedisServer", "S3Server"]
