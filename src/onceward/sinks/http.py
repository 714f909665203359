"""Signed webhooks as the destination, following Standard Webhooks: `id.timestamp.body` under HMAC-SHA256.

Invariant: a request goes only to an address that was checked: the host is resolved once, private and local
addresses are refused unless allowed, and the connection is made to the very address that was checked. Redirects are
not followed.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from onceward.domain.headers import header_text
from onceward.domain.standard_webhooks import secret_bytes, sign
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject, Retry

try:
    import httpx2
except ImportError as error:
    raise ConfigurationError("signed webhooks need an HTTP client: pip install 'onceward[http]'") from error

_TRY_LATER = {408, 425, 429}
_SUCCESS = range(200, 300)
_REFUSED = range(400, 500)
_PORTS = range(1, 65_536)
_LONGEST_WAIT = 86_400

# Gateways translate what is in the first to the IPv4 address in its last bytes; the others are not public,
# though Python calls them global.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_NOT_PUBLIC = [ipaddress.ip_network(text) for text in ("::/96", "64:ff9b:1::/48", "fec0::/10")]


class HttpSink:
    """POSTs outgoing messages to a URL, signed with each of the secrets (several while one is being replaced).

    `secrets=None` signs nothing: for a receiver that knows its sender by the URL, or by what is in the body.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[str] | None,
        timeout: timedelta = timedelta(seconds=10),
        allow_private: bool = False,
    ) -> None:
        self._url = _checked_url(url)
        if self._url.scheme == "http" and not allow_private:
            raise ConfigurationError(
                f"{url!r} is not https; plain http is only for addresses of your own (allow_private=True)"
            )
        self._keys = [secret_bytes(secret) for secret in secrets or ()]
        if secrets is not None and not self._keys:
            raise ConfigurationError(
                "secrets is empty; a webhook without a signature cannot be trusted by its receiver"
            )
        self._allow_private = allow_private
        self._client = httpx2.Client(timeout=timeout.total_seconds(), follow_redirects=False, trust_env=False)

    def publish(self, message: Message) -> None:
        address = checked_address(self._url.host, self._port, allow_private=self._allow_private)
        request = self._client.build_request(
            "POST",
            self._url.copy_with(host=address),
            content=message.body,
            headers={**self._headers(message), "host": self._url.netloc.decode()},
            extensions={"sni_hostname": self._url.host},
        )
        response = self._client.send(request, stream=True)
        try:
            _check(response)
        finally:
            response.close()

    @property
    def _port(self) -> int:
        return self._url.port or (443 if self._url.scheme == "https" else 80)

    def _headers(self, message: Message) -> dict[str, str]:
        timestamp, name = str(int(time.time())), header_text(message.id)
        passed = {name: header_text(value) for name, value in message.headers.items() if _is_passed_on(name)}
        signatures = " ".join(sign(key, name, timestamp, message.body) for key in self._keys)
        return {
            "content-type": "application/json",
            **passed,
            "webhook-id": name,
            "webhook-timestamp": timestamp,
            **({"webhook-signature": signatures} if signatures else {}),
            "webhook-type": header_text(message.type),
        }

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def checked_address(host: str, port: int, *, allow_private: bool) -> str:
    """Resolve a host once and refuse addresses that an outsider must not reach through us."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionError(f"{host!r} cannot be resolved: {error}") from error
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        if not allow_private and not is_public(address):
            raise Reject(f"{host!r} leads to {address}, which is not a public address; allow_private=True permits it")
    return str(addresses[0])


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one that is open to all, also where it only wraps another."""
    if isinstance(address, ipaddress.IPv6Address):
        inside = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            inside = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inside is not None:
            return is_public(inside)
        if any(address in network for network in _NOT_PUBLIC):
            return False
    return address.is_global and not address.is_multicast


def _checked_url(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ConfigurationError(f"{text!r} must be an http(s) URL: {error}") from error
    if url.scheme not in ("https", "http") or not url.host or url.userinfo or (url.port or 80) not in _PORTS:
        raise ConfigurationError(f"{text!r} must be an http(s) URL with a host and without credentials")
    return url


def _is_passed_on(name: str) -> bool:
    return name.lower() in ("content-type", "correlation-id", "causation-id", "traceparent", "tracestate")


def _check(response: httpx2.Response) -> None:
    status = response.status_code
    if status in _SUCCESS:
        return
    if status in _REFUSED and status not in _TRY_LATER:
        raise Reject(f"the receiver refused the message with status {status}")
    after = _seconds(response.headers.get("retry-after", ""))
    if after is not None:
        raise Retry(f"the receiver responded with status {status}", after=min(max(after, 0), _LONGEST_WAIT))
    raise ConnectionError(f"the receiver responded with status {status}")


def _seconds(text: str) -> float | None:
    """What a Retry-After header says: seconds, or a date; None where it says nothing that can be read."""
    if text.isascii() and text.isdigit():
        return int(text[:6])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
