"""Private servers for the tests: real ones, owned by the test run, free to be killed.

Invariant: a server here listens on loopback only (DynamoDB Local has no setting for that), on a port of its own, keeps
its files in a folder of its own, and is gone, with its folder, when the test process is gone, however that ended.
"""

from tests.servers.dynamodb import DynamoServer
from tests.servers.kafka import KafkaServer
from tests.servers.kafka_mock import KafkaMock
from tests.servers.mariadb import MariadbServer
from tests.servers.mosquitto import MosquittoServer
from tests.servers.moto import MotoServer
from tests.servers.nats import NatsServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.servers.pubsub import PubsubServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer, ValkeyServer

__all__ = [
    "DynamoServer",
    "FaultProxy",
    "KafkaMock",
    "KafkaServer",
    "MariadbServer",
    "MosquittoServer",
    "MotoServer",
    "NatsServer",
    "PgBouncer",
    "PostgresServer",
    "PubsubServer",
    "PulsarServer",
    "RabbitServer",
    "RedisServer",
    "ValkeyServer",
]
