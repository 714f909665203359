"""Certificates of the tests' own: an authority that nobody knows, and what it says about servers."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_OTHER_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("encipher_only", "decipher_only"),
)


class Root:
    """An authority with a key of its own, valid for a thousand days around its beginning."""

    def __init__(self, begin: datetime) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(_OTHER_USES, False))
        around = timedelta(days=1000)
        builder = self._begun("root of the tests", self._key, None, begin - around, begin + around)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        """The root itself."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, key: Any, begin: datetime, end: datetime) -> bytes:
        """A certificate for a server's name or number, as PEM."""
        try:
            known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            known = x509.DNSName(name)
        builder = self._begun(name, key, self._certificate, begin, end)
        builder = builder.add_extension(x509.SubjectAlternativeName([known]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _begun(
        self, name: str, key: Any, issuer: x509.Certificate | None, begin: datetime, end: datetime
    ) -> x509.CertificateBuilder:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


class Papers(NamedTuple):
    """What a server shows, and what its clients must know, each as PEM."""

    root: str
    certificate: str
    key: str


@cache
def papers() -> Papers:
    """For every private server of this process."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    root = Root(now)
    shown = root.issue("127.0.0.1", key, now - timedelta(days=1), now + timedelta(days=30))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Papers(root.pem.decode(), shown.decode(), secret.decode())
