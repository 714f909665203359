"""What both directions of Kafka share: the client's configuration, from an address.

`kafka://` is plain, `kafkas://` is TLS; a user and password in the address are SASL, `sasl=` says which mechanism.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote, urlsplit

from onceward.address import Address
from onceward.errors import ConfigurationError

log = logging.getLogger("onceward.kafka")

MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512")


def client_configuration(address: Address) -> dict[str, Any]:
    """How to reach the brokers."""
    parts = urlsplit(address.server)
    who, _, brokers = parts.netloc.rpartition("@")
    found: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "security.protocol": f"{'SASL_' if who else ''}{'SSL' if parts.scheme == 'kafkas' else 'PLAINTEXT'}",
        "reconnect.backoff.max.ms": 2000,
        "error_cb": lambda error: log.debug("Kafka: %s", error),
        "log_level": 2,  # what it writes itself, to the standard error; `error_cb` hears of the same
    }
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
