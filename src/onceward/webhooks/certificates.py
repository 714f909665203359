"""Certificates by address, for senders that sign with one: fetched over TLS from allowed hosts alone, checked, kept.

Invariant: a sender who chooses the address can make us do no more than a few requests a minute, to a host that is
allowed. No redirect is followed, nothing but the expected path is asked for, and no more than 64 KiB is read.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onceward.errors import ConfigurationError
from onceward.webhooks.request import NotAuthentic, TryLater

try:
    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
except ImportError as missing:
    raise ConfigurationError("webhooks signed with certificates need: pip install 'onceward[webhooks]'") from missing

MAX_BYTES = 64 * 1024
TIMEOUT_SECONDS = 5.0
KEPT = 16
KEPT_SECONDS = 24 * 3600.0
FETCHES_A_MINUTE = 10
_PATH = re.compile(r"/v1/notifications/certs/CERT-[0-9A-Za-z-]{8,80}")

Fetch = Callable[[str, str], bytes]


class Certificates:
    """The certificates of a sender. `hosts` maps each host that may serve them to the name they must be for."""

    def __init__(self, hosts: dict[str, str], roots: list[x509.Certificate], fetch: Fetch | None = None) -> None:
        self._hosts, self._store = hosts, Store(roots)
        self._fetch = fetch or fetched
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[x509.Certificate]]] = {}
        self._fetches: list[float] = []

    def public_key(self, url: str, now: float) -> Any:
        """The public key behind an address, from a certificate that is valid now and leads to a root."""
        host, path = self._checked(url)
        with self._lock:  # one at a time: whoever waits finds it kept
            kept_at, certificates = self._kept.get(url, (0.0, []))
            fresh = bool(certificates) and 0 <= now - kept_at < KEPT_SECONDS
            if not fresh:
                certificates = _read(self._fetched(host, path, now))
            self._verify(host, certificates, now)  # also a kept one: it may have ended since
            if not fresh:
                while len(self._kept) >= KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[url] = (now, certificates)
        return certificates[0].public_key()

    def _checked(self, url: str) -> tuple[str, str]:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise NotAuthentic("the certificate's address cannot be read") from None
        host = parts.netloc
        # The whole text is compared: no port, no credentials, no other spelling of a host.
        if host not in self._hosts or url != f"https://{host}{parts.path}" or not _PATH.fullmatch(parts.path):
            raise NotAuthentic("the certificate's address is not one of the sender's")
        return host, parts.path

    def _fetched(self, host: str, path: str, now: float) -> bytes:
        self._fetches = [moment for moment in self._fetches if 0 <= now - moment < 60]  # noqa: PLR2004 - a minute
        if len(self._fetches) >= FETCHES_A_MINUTE:
            raise TryLater("too many certificates are asked for", seconds=60)
        self._fetches.append(now)
        try:
            return self._fetch(host, path)
        except (OSError, http.client.HTTPException) as error:
            reason = f"the sender's certificate could not be fetched: {type(error).__name__}: {error}"
            raise TryLater("the sender's certificate cannot be fetched now", reason=reason, seconds=30) from error

    def _verify(self, host: str, certificates: list[x509.Certificate], now: float) -> None:
        policy = PolicyBuilder().store(self._store).time(datetime.fromtimestamp(now, UTC))
        verifier = policy.build_server_verifier(x509.DNSName(self._hosts[host]))
        try:
            verifier.verify(certificates[0], certificates[1:])
        except VerificationError as error:
            raise NotAuthentic(f"the certificate is not trusted: {error}") from error


def fetched(host: str, path: str) -> bytes:
    """GET over verified TLS on port 443; a redirect is an error like any other answer but 200."""
    connection = http.client.HTTPSConnection(host, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())
    try:
        connection.request("GET", path, headers={"accept": "application/x-pem-file, */*"})
        response = connection.getresponse()
        content = response.read(MAX_BYTES + 1)
    finally:
        connection.close()
    if response.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ConnectionError(f"the response was {response.status}")
    if response.status != http.HTTPStatus.OK or len(content) > MAX_BYTES:
        raise NotAuthentic(f"the certificate's address responded with {response.status} and {len(content)} bytes")
    return content


def _read(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise NotAuthentic("what the certificate's address returns is not a certificate") from None


def system_roots() -> list[x509.Certificate]:
    """The certificate authorities that this system trusts."""
    places = [ssl.get_default_verify_paths().cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"]
    for place in places:
        if place and Path(place).is_file():
            return roots_in(Path(place).read_bytes())
    raise ConfigurationError("no certificate authorities were found on this system; pass roots= (PEM bytes)")


def roots_in(pem: bytes) -> list[x509.Certificate]:
    """Certificate authorities from PEM bytes."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigurationError(f"roots= is not PEM: {error}") from error
