"""NATS JetStream as the destination: confirmed by the stream, which knows a copy that comes soon by `Nats-Msg-Id`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of, header_text
from onceward.sinks.loop import Link

try:
    from nats.aio.client import Client
    from nats.errors import Error
    from nats.js.errors import NoStreamResponseError, NotFoundError
except ImportError as error:
    raise ConfigurationError("NATS needs: pip install 'onceward[nats]'") from error

if TYPE_CHECKING:
    from nats.js import JetStreamContext

CONNECT_SECONDS, CLOSE_SECONDS = 5, 0.5
FORM = "nats://host:4222?subject="


class NatsSink:
    """`nats://host:4222?subject=orders.paid`; without a subject it is the message's type.

    The id is `Nats-Msg-Id`, the type the header `type`. What is not plain ASCII in them is percent-encoded.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        server, self._subject, self._where = address.server, address["subject"], address.shown
        self._link: Link[Client] = Link(self._where, lambda: connected(server), Client.close, (Error,))

    def publish(self, message: Message) -> None:
        subject = self._subject or message.type
        headers = {name: header_text(value) for name, value in fields_of(message).items()}
        headers["Nats-Msg-Id"] = headers.pop("id")

        async def confirmed(connection: Client) -> None:
            stream = connection.jetstream()
            try:
                await stream.publish(subject, message.body, headers=headers)
            except NoStreamResponseError:  # a server that has just started says so, too
                if not await _is_taken(stream, subject):
                    problem = f"{self._where}: no stream takes the subject {subject!r}; make one, then redrive"
                    raise Reject(problem) from None
                raise

        self._link.use(confirmed)

    def close(self) -> None:
        self._link.close()


async def connected(url: str) -> Client:
    """A connection that does not come back by itself; a server that is away is an error soon."""

    async def heard(_: Exception) -> None:
        """Whatever it is, the next call says it."""

    client = Client()
    try:
        await client.connect(
            **_credentials(url),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            error_cb=heard,
        )
    except BaseException:
        # It may have left the connection open on which it was refused; one without TLS yet never says that it closed.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
        raise
    return client


def _credentials(url: str) -> dict[str, Any]:
    """The server, and who we are: the client takes what is in a URL as it stands, escapes and all."""
    parts = urlsplit(url)
    who, _, host = parts.netloc.rpartition("@")
    found: dict[str, Any] = {"servers": parts._replace(netloc=host).geturl()}
    user, is_pair, password = who.partition(":")
    if is_pair:
        found |= {"user": unquote(user), "password": unquote(password)}
    elif user:
        found |= {"token": unquote(user)}
    return found


async def _is_taken(stream: JetStreamContext, subject: str) -> bool:
    try:
        await stream.find_stream_name_by_subject(subject)
    except NotFoundError:
        return False
    return True
