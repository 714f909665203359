"""What both directions of Kafka share: the client's configuration, from an address.

`kafka://` is plain, `kafkas://` is TLS; a user and password in the address are SASL, `sasl=` says which mechanism.
"""

from __future__ import annotations

import logging
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka import KafkaError

from onceward.domain.address import Address
from onceward.errors import ConfigurationError

log = logging.getLogger("onceward.kafka")

REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001 - so the client spells its own errors
"""What a client goes on trying by itself, though waiting does not cure it."""
MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512")


class ErrorCallback:
    """Keeps why a client cannot connect: it says so in a callback, and no error of its calls does."""

    def __init__(self, *permanent: int) -> None:
        self._permanent = permanent
        self.first = ""
        """The first error,"""
        self.permanent = ""
        """and one that waiting does not cure, by its code."""

    def __call__(self, error: Any) -> None:
        log.debug("Kafka: %s", error)
        self.first = self.first or error.str()
        if error.code() in self._permanent:
            self.permanent = error.str()


def client_configuration(address: Address, errors: ErrorCallback) -> dict[str, Any]:
    """Return how to reach the brokers."""
    parts = urlsplit(address.server)
    login, _, brokers = parts.netloc.rpartition("@")
    found: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "security.protocol": f"{'SASL_' if login else ''}{'SSL' if parts.scheme == 'kafkas' else 'PLAINTEXT'}",
        "reconnect.backoff.max.ms": 2000,
        "error_cb": errors,
        "log_level": 2,  # what it writes itself, to the standard error; `error_cb` hears of the same
    }
    if root := os.environ.get("SSL_CERT_FILE"):  # where every other client looks for roots of one's own
        found["ssl.ca.location"] = root
    if login:
        if address["sasl"] not in MECHANISMS:
            raise ConfigurationError(f"sasl={address['sasl']} must be one of {', '.join(MECHANISMS)}")
        user, _, password = login.partition(":")
        found |= {
            "sasl.mechanism": address["sasl"].upper(),
            "sasl.username": unquote(user),
            "sasl.password": unquote(password),
        }
    return found
