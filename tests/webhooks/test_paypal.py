"""PayPal: whose certificate, from where, how often fetched; and what a checksum cannot prove (W09)."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding

from onceward import ConfigurationError
from onceward.webhooks.certificates import FETCHES_A_MINUTE, KEPT_SECONDS, fetched, system_roots
from onceward.webhooks.paypal import PayPal
from onceward.webhooks.request import NotAuthentic, TryLater
from tests.webhooks.forgery import colliding
from tests.webhooks.senders import (
    AUTHORITY,
    CERTIFICATE,
    NOW,
    WEBHOOK_ID,
    Authority,
    Signed,
    event,
    paypal,
    sign_paypal,
)


@pytest.fixture
def authority() -> Iterator[Authority]:
    """The tests' authority, counting what is fetched in this test."""
    AUTHORITY.fetches.clear()
    served = AUTHORITY.served
    yield AUTHORITY
    AUTHORITY.served = served


def test_without_a_webhook_id_nothing_starts() -> None:
    for nothing in ("", " ", None, "9XL-", "9XL\n"):
        with pytest.raises(ConfigurationError, match="webhook id"):
            paypal(nothing)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not PEM"):
        paypal(roots=b"nothing")


@pytest.mark.parametrize(
    "url",
    [
        CERTIFICATE.replace("https", "http"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com.evil.example"),
        CERTIFICATE.replace("api.paypal.com", "evil.example"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com:443"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com:8443"),
        CERTIFICATE.replace("api.paypal.com", "evil@api.paypal.com"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com@evil.example"),
        CERTIFICATE.replace("api.paypal.com", "API.PAYPAL.COM"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com."),
        CERTIFICATE.replace("api.paypal.com", "api.sandbox.paypal.com"),
        CERTIFICATE.replace("api.paypal.com", "169.254.169.254"),
        CERTIFICATE.replace("api.paypal.com", "[::1]"),
        CERTIFICATE.replace("api.paypal.com", "api.paypal.com\\@evil.example"),
        CERTIFICATE.replace("/v1/", "/v1/../v1/"),
        CERTIFICATE.replace("certs/", "certs/../"),
        CERTIFICATE + "?x=1",
        CERTIFICATE + "#x",
        CERTIFICATE + "/../../../evil",
        CERTIFICATE + "%0d%0aHost:evil",
        "https://api.paypal.com/v1/identity/openidconnect",
        "file:///etc/passwd",
        "https://[",
        "//api.paypal.com/v1/notifications/certs/CERT-360caa42",
    ],
)
def test_a_certificate_comes_from_nowhere_else(authority: Authority, url: str) -> None:
    signed = sign_paypal(event("e"), "e").changed(paypal_cert_url=url)
    with pytest.raises(NotAuthentic):
        paypal().verify(signed.request, NOW)
    assert authority.fetches == []


def test_sandbox_certificates_are_for_the_sandbox(authority: Authority) -> None:
    url = CERTIFICATE.replace("api.", "api.sandbox.")
    signed = sign_paypal(event("e"), "e").changed(paypal_cert_url=url)
    with pytest.raises(NotAuthentic, match="not trusted"):  # still the certificate of the real one
        paypal(sandbox=True).verify(signed.request, NOW)
    authority.served = authority.chain("messageverificationcerts.sandbox.paypal.com")
    assert paypal(sandbox=True).verify(signed.request, NOW).id == "e"
    with pytest.raises(NotAuthentic, match="address"):
        paypal(sandbox=True).verify(sign_paypal(event("e"), "e").request, NOW)


def test_a_certificate_must_lead_to_a_root_be_paypals_and_be_valid(authority: Authority) -> None:
    for served in (
        Authority().chain(),  # another authority
        authority.chain("www.paypal.com"),
        authority.chain("messageverificationcerts.paypal.com.evil.example"),
        authority.chain(begin=NOW + 86_400),
        authority.chain(begin=NOW - 100 * 86_400, days=90),
        b"nothing",
        b"",
    ):
        authority.served = served
        with pytest.raises(NotAuthentic):
            paypal().verify(sign_paypal(event("e"), "e").request, NOW)


def test_a_certificate_is_kept_and_checked_again(authority: Authority) -> None:
    """Fetched once; refused once it has ended, though it is kept: it ends long before it would be fetched again."""
    verifier = paypal()
    ends = NOW + KEPT_SECONDS / 2
    authority.served = authority.chain(begin=ends - 90 * 86_400, days=90)
    for now in (NOW, NOW, ends - 1):
        assert verifier.verify(sign_paypal(event("e"), "e", now=now).request, now).id
    with pytest.raises(NotAuthentic, match="not trusted"):
        verifier.verify(sign_paypal(event("e"), "e", now=ends + 1).request, ends + 1)
    assert len(authority.fetches) == 1


def test_a_kept_certificate_is_fetched_again_after_a_day(authority: Authority) -> None:
    """And one that was replaced meanwhile is no longer accepted."""
    verifier = paypal()
    for now in (NOW, NOW + KEPT_SECONDS - 1):
        assert verifier.verify(sign_paypal(event("e"), "e", now=now).request, now).id
    authority.served = Authority().chain()
    later = NOW + KEPT_SECONDS
    with pytest.raises(NotAuthentic, match="not trusted"):
        verifier.verify(sign_paypal(event("e"), "e", now=later).request, later)
    assert len(authority.fetches) == 2


def test_a_stranger_cannot_make_us_ask_again_and_again(authority: Authority) -> None:
    verifier = paypal()
    assert verifier.verify(sign_paypal(event("e"), "e").request, NOW).id
    authority.served = b"nothing"
    for number in range(FETCHES_A_MINUTE + 5):
        signed = sign_paypal(event("e"), "e").changed(paypal_cert_url=f"{CERTIFICATE}{number}")
        with pytest.raises(NotAuthentic if number < FETCHES_A_MINUTE - 1 else TryLater):
            verifier.verify(signed.request, NOW)
    assert len(authority.fetches) == FETCHES_A_MINUTE
    assert verifier.verify(sign_paypal(event("e"), "e").request, NOW).id  # what is kept still serves


def test_a_server_that_is_away_means_later() -> None:
    def away(host: str, path: str) -> bytes:
        raise ConnectionRefusedError(f"{host}{path}")

    with pytest.raises(TryLater, match="could not be fetched"):
        paypal(fetch=away).verify(sign_paypal(event("e"), "e").request, NOW)


def test_only_rsa_with_sha256_and_a_large_key(authority: Authority) -> None:
    signed = sign_paypal(event("e"), "e")
    for algorithm in ("SHA1withRSA", "SHA256withDSA", "none", "sha256withrsa"):
        with pytest.raises(NotAuthentic, match="algorithm"):
            paypal().verify(signed.changed(paypal_auth_algo=algorithm).request, NOW)
    text = f"{signed.headers['paypal-transmission-id']}|{signed.headers['paypal-transmission-time']}|"
    text += f"{WEBHOOK_ID}|{zlib.crc32(signed.body)}"
    weak = base64.b64encode(authority.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA1())).decode()  # noqa: S303
    with pytest.raises(NotAuthentic, match="did not make"):
        paypal().verify(signed.changed(paypal_transmission_sig=weak).request, NOW)


@pytest.mark.parametrize("bits", [1024, 2047, 2048])
def test_a_small_key_proves_nothing(bits: int) -> None:
    """Whatever the checks of the chain make of it: here they have passed, and the signature is right."""
    small = Authority(bits=bits)
    verifier, signed = paypal(), sign_paypal(event("e"), "e", authority=small)
    verifier._certificates = Behind(small)  # type: ignore[assignment]
    if bits >= 2048:
        assert verifier.verify(signed.request, NOW).id == "e"
    else:
        with pytest.raises(NotAuthentic, match="2048 bits"):
            verifier.verify(signed.request, NOW)
        with pytest.raises(NotAuthentic):
            paypal(roots=small.roots, fetch=small.fetch).verify(signed.request, NOW)


def test_a_key_of_another_kind_proves_nothing(authority: Authority) -> None:
    """Refused as a signature, not as an error of ours."""
    signed = sign_paypal(event("e"), "e")
    authority.served = authority.chain(key=ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(NotAuthentic, match="not RSA"):
        paypal().verify(signed.request, NOW)


class Behind:
    """Certificates whose chains are all in order."""

    def __init__(self, authority: Authority) -> None:
        self._key = authority.key.public_key()

    def public_key(self, *_: Any) -> Any:
        """The key behind any address."""
        return self._key


def test_the_time_covers_the_retries_and_no_more() -> None:
    """A retry may carry its first time: refusing it would lose the event after a short outage."""
    days = 3 * 86_400
    for age, accepted in ((0, True), (days + 300, True), (days + 301, False), (-300, True), (-301, False)):
        signed = sign_paypal(event("e"), "e", now=NOW - age)
        if accepted:
            assert paypal().verify(signed.request, NOW).id
        else:
            with pytest.raises(NotAuthentic, match="signed"):
                paypal().verify(signed.request, NOW)
    assert paypal().redelivery == timedelta(days=3)


@pytest.mark.parametrize(
    "text", ["2027-01-15", "2027-01-15T08:00:00", "2027-01-15T08:00:00+02:00", "1800000000", "nan"]
)
def test_only_one_form_of_time(text: str) -> None:
    signed = sign_paypal(event("e"), "e").changed(paypal_transmission_time=text)
    with pytest.raises(NotAuthentic, match="transmission time"):
        paypal().verify(signed.request, NOW)


def test_signed_parts_cannot_be_moved(authority: Authority) -> None:
    """`a|b` and `c` must not be read as `a` and `b|c`."""
    signed = sign_paypal(event("e"), "e")
    moved = signed.changed(
        paypal_transmission_id=f"{signed.headers['paypal-transmission-id']}|{signed.headers['paypal-transmission-time']}"
    )
    with pytest.raises(NotAuthentic, match="separator"):
        paypal().verify(moved.request, NOW)
    assert authority.fetches == []


def test_a_checksum_proves_no_body() -> None:
    """The trap itself: with one genuine signature, another body passes. So the event is marked, for the handler."""
    genuine = sign_paypal(event("evt_1", amount=1), "evt_1")
    forged = colliding(event("evt_1", amount=1000)[:-1] + b', "note": "', b'"}', zlib.crc32(genuine.body))
    assert json.loads(forged)["amount"] == 1000
    found = paypal().verify(Signed(forged, genuine.headers).request, NOW)
    assert found.unsigned == ("body",)


# The network itself


@contextmanager
def tls_server(answer: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A server that is api.paypal.com to this process, with a certificate of the tests' authority."""
    made = Authority()
    name = made.chain("api.paypal.com", begin=1_700_000_000, days=7000)
    key = made.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(key + name)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem")
    trusting = ssl.create_default_context(cadata=made.roots.decode())
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT if hasattr(ssl, "VERIFY_X509_STRICT") else 0
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        real, port = socket.create_connection, listener.getsockname()[1]

        def connect(address: Any, *rest: Any, **options: Any) -> socket.socket:
            assert address == ("api.paypal.com", 443)
            return real(("127.0.0.1", port), *rest, **options)

        monkeypatch.setattr(socket, "create_connection", connect)

        def serve() -> None:
            plain, _ = listener.accept()
            with plain, serving.wrap_socket(plain, server_side=True) as secure:
                requests.append(secure.recv(65_536))
                secure.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield requests
        thread.join()


def test_fetching_asks_for_the_path_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\npem"
    with tls_server(answer, tmp_path, monkeypatch) as requests:
        assert fetched("api.paypal.com", "/v1/notifications/certs/CERT-1") == b"pem"
    assert requests[0].startswith(b"GET /v1/notifications/certs/CERT-1 HTTP/1.1\r\nHost: api.paypal.com\r\n")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: https://169.254.169.254/\r\ncontent-length: 0\r\n\r\n", NotAuthentic),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", NotAuthentic),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70_000, NotAuthentic),
        (b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n", ConnectionError),
    ],
    ids=["redirect", "missing", "large", "away"],
)
def test_fetching_follows_nothing_and_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, error: type[Exception]
) -> None:
    with tls_server(answer, tmp_path, monkeypatch), pytest.raises(error):
        fetched("api.paypal.com", "/v1/notifications/certs/CERT-1")


def test_the_systems_roots_serve_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "roots.pem"
    bundle.write_bytes(AUTHORITY.roots)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert len(system_roots()) == 1
    assert PayPal(WEBHOOK_ID, fetch=AUTHORITY.fetch).verify(sign_paypal(event("e"), "e").request, NOW).id
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    with pytest.raises(ConfigurationError, match="roots="):
        system_roots()
