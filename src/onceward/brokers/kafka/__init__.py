"""Kafka, in both directions."""

from onceward.brokers.protocol import Broker
from onceward.errors import ConfigurationError

try:
    import confluent_kafka  # noqa: F401 - before the modules that use it
except ImportError as error:
    raise ConfigurationError("Kafka needs: pip install 'onceward[kafka]'") from error

from onceward.brokers.kafka.sink import KafkaSink
from onceward.brokers.kafka.source import KafkaTopic

BROKER = Broker(KafkaTopic, KafkaSink)

__all__ = ["BROKER", "KafkaSink", "KafkaTopic"]
