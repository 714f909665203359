"""What both directions of Kafka share: the client's configuration, from an address.

`kafka://` is plain, `kafkas://` is TLS; a user and password in the address are SASL, `sasl=` says which mechanism.
"""

from __future__ import annotations

import logging
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from onceward.domain.address import Address
from onceward.errors import ConfigurationError

log = logging.getLogger("onceward.kafka")

MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512")


class Hearing:
    """Why a client cannot connect: it says so in a callback, and no error of its calls does."""

    def __init__(self, *hopeless: int) -> None:
        self._hopeless = hopeless
        self.first = ""
        """What was heard first,"""
        self.hopeless = ""
        """and what no patience helps with, by its code."""

    def __call__(self, error: Any) -> None:
        log.debug("Kafka: %s", error)
        self.first = self.first or error.str()
        if error.code() in self._hopeless:
            self.hopeless = error.str()


def client_configuration(address: Address, hearing: Hearing) -> dict[str, Any]:
    """How to reach the brokers."""
    parts = urlsplit(address.server)
    who, _, brokers = parts.netloc.rpartition("@")
    found: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "security.protocol": f"{'SASL_' if who else ''}{'SSL' if parts.scheme == 'kafkas' else 'PLAINTEXT'}",
        "reconnect.backoff.max.ms": 2000,
        "error_cb": hearing,
        "log_level": 2,  # what it writes itself, to the standard error; `error_cb` hears of the same
    }
    if root := os.environ.get("SSL_CERT_FILE"):  # where every other client looks for roots of one's own
        found["ssl.ca.location"] = root
    if who:
        if address["sasl"] not in MECHANISMS:
            raise ConfigurationError(f"sasl={address['sasl']} must be one of {', '.join(MECHANISMS)}")
        user, _, password = who.partition(":")
        found |= {
            "sasl.mechanism": address["sasl"].upper(),
            "sasl.username": unquote(user),
            "sasl.password": unquote(password),
        }
    return found
