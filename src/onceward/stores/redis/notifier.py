"""Waking up: a message on a channel says that there is something new. A hint only: the poll is the fallback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import redis

CONNECTED_AGAIN_SECONDS = 1.0
LISTEN_SECONDS = 0.5


class RedisListener(threading.Thread):
    """Listens, and wakes this process when a process notifies."""

    def __init__(self, connect: Callable[[], redis.Redis], channel: str, wake: Callable[[], None]) -> None:
        super().__init__(name="onceward-listener", daemon=True)
        self._connect, self._channel, self._wake = connect, channel, wake
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            client: Any = self._connect()
            try:
                with client.pubsub(ignore_subscribe_messages=True) as channel:
                    channel.subscribe(self._channel)
                    self._wake()  # whatever came while nobody was listening
                    while not self._stopping.is_set():
                        if channel.get_message(timeout=LISTEN_SECONDS) is not None:
                            self._wake()
            except (redis.RedisError, OSError):
                self._stopping.wait(CONNECTED_AGAIN_SECONDS)
            finally:
                client.close()

    def close(self) -> None:
        """Stop listening; fine when stopped already."""
        self._stopping.set()
        self.join(timeout=5)
