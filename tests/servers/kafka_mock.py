"""Kafka as librdkafka itself plays it: quick to start, in this process and in memory, and not Kafka.

The fast second lane beside the real one, and what is left where the real one cannot be fetched. It speaks the protocol
over a port, to other processes too: groups, rebalances, sessions that end, offsets. It cannot stand behind a proxy
(clients go on to the address that it advertises), come back after a kill, refuse an unknown topic, or hide what a
transaction has taken back.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path
from typing import Any, Self

import confluent_kafka

_PRODUCER = 0
_REBALANCE_MILLISECONDS = 50
"""How long a group that begins waits for more members; by default three seconds."""


class KafkaMock:
    """A cluster of one broker; use as a context manager."""

    name = "librdkafka's mock cluster"
    host = "127.0.0.1"

    def __init__(self) -> None:
        self._library = _library()
        self._owner: Any = None
        self._cluster: Any = None
        self.port = 0

    @property
    def version(self) -> str:
        """Of librdkafka."""
        return confluent_kafka.libversion()[0]

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"kafka://{self.host}:{self.port}"

    def make_topic(self, name: str, partitions: int) -> None:
        """The client has no way to: the cluster knows no requests of administrators."""
        failed = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        if failed:
            raise RuntimeError(f"{self.name} did not make the topic {name}: error {failed}")

    def restart(self) -> None:
        """What is in memory is gone with it."""
        raise RuntimeError(f"{self.name} cannot be restarted: mark the case with needs('restart')")

    def __enter__(self) -> Self:
        said = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"2", said, len(said))  # it wants brokers, and has none
        self._owner = self._library.rd_kafka_new(_PRODUCER, settings, said, len(said))
        if not self._owner:
            raise RuntimeError(f"{self.name} did not start: {said.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._owner, 1)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, _REBALANCE_MILLISECONDS)
        self.port = int(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).rpartition(b":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._owner)


def _library() -> Any:
    """The librdkafka that the client was built with, which Python's client gives no way to call directly."""
    bundled = sorted(Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*"))
    found = ctypes.CDLL(str(bundled[0]) if bundled else ctypes.util.find_library("rdkafka"))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, answer, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", ctypes.c_int, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [ctypes.c_int, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, ctypes.c_int]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", ctypes.c_int, [pointer, text, ctypes.c_int, ctypes.c_int]),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, [pointer, ctypes.c_int32]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = answer, arguments
    return found
