"""A private Mosquitto, the MQTT broker, which forgets nothing that it was asked to save."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import signal
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.private import PASSWORD, USER, PrivateServer
from tests.waiting import wait_until

_CONFIGURATION = """\
per_listener_settings true
persistence true
persistence_location {folder}/
max_queued_messages 0
sys_interval 0
log_dest stderr
listener {port} 127.0.0.1
allow_anonymous true
listener {secure} 127.0.0.1
allow_anonymous false
password_file {passwords}
certfile {certificate}
keyfile {key}
"""
_HEADER = struct.Struct(">15sII")
_CHUNK = struct.Struct(">II")
_CLIENT_MESSAGE = struct.Struct(">QHHBBBB")
_IS_CLIENT_MESSAGE = 3
_OUTWARD = 1
_ATTEMPTS, _PATIENCE_SECONDS = 60, 1.0


class MosquittoServer(PrivateServer):
    """A Mosquitto of one's own."""

    name = "Mosquitto"
    form = "mqtt://127.0.0.1:{port}"
    ready = " running"
    version_option = "-h"

    def __init__(self) -> None:
        super().__init__(install.mosquitto_program())
        self.secure_port = free_port()

    def command(self, port: int) -> Sequence[str | Path]:
        certificate, key = self.write_papers()
        text = _CONFIGURATION.format(
            port=port,
            secure=self.secure_port,
            folder=self.folder,
            passwords=self.write("passwords", _hashed(USER, PASSWORD)),
            certificate=certificate,
            key=key,
        )
        return [self._program, "-c", self.write("mosquitto.conf", text)]

    def kill(self) -> None:
        # It keeps everything in memory for half an hour; what it loses by a crash before that is not our matter.
        if self.running:
            self._save()
        super().kill()

    def unsettled(self, client: str) -> int:
        """How many messages a client has not acknowledged, delivered or not: MQTT has no question for that."""
        return sum(found == client for found in self._messages(self._save()))

    def _save(self) -> bytes:
        """Have it write down what it knows, and read that."""
        path = self.folder / "mosquitto.db"
        before = path.stat().st_ino if path.exists() else 0

        def saved() -> bool:
            return path.exists() and path.stat().st_ino != before

        for _ in range(_ATTEMPTS):
            os.kill(self._process.pid, signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):  # it overlooks a signal that comes at the end of the last saving
                wait_until(saved, timeout=_PATIENCE_SECONDS)
                return path.read_bytes()
        raise TimeoutError(f"Mosquitto does not save its messages:\n{self.log()}")

    def _messages(self, saved: bytes) -> Iterator[str]:
        """The client of each message that is on its way out."""
        at = _HEADER.size
        while at < len(saved):
            kind, length = _CHUNK.unpack_from(saved, at)
            at += _CHUNK.size
            if kind == _IS_CLIENT_MESSAGE:
                _, _, size, _, _, _, direction = _CLIENT_MESSAGE.unpack_from(saved, at)
                name = saved[at + _CLIENT_MESSAGE.size :][:size]
                if direction == _OUTWARD:
                    yield name.decode()
            at += length


def _hashed(user: str, password: str) -> str:
    """A line of Mosquitto's file of passwords, as `mosquitto_passwd` writes it: PBKDF2 with SHA-512."""
    salt, rounds = os.urandom(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"{user}:$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"
