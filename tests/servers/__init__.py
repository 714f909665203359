"""Private servers for the tests: real ones, owned by the test run, free to be killed.

Invariant: a server here listens on loopback only, on a port of its own, keeps its files in a folder of its
own, and is gone, with its folder, when the test process is gone, however that ended.
"""

from tests.servers.kafka import KafkaServer
from tests.servers.kafka_mock import KafkaMock
from tests.servers.mosquitto import MosquittoServer
from tests.servers.moto import MotoServer
from tests.servers.nats import NatsServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.servers.pubsub import PubsubServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer

__all__ = [
    "FaultProxy",
    "KafkaMock",
    "KafkaServer",
    "MosquittoServer",
    "MotoServer",
    "NatsServer",
    "PgBouncer",
    "PostgresServer",
    "PubsubServer",
    "RabbitServer",
    "RedisServer",
]
