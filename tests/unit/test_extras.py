"""Where the package of an extra is missing, the first import says which extra to install."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import onceward
from onceward.errors import ConfigurationError

PACKAGE = Path(onceward.__file__).parent


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("brokers/mqtt.py", "paho.mqtt.client", "mqtt"),
        ("brokers/nats.py", "nats", "nats"),
        ("brokers/redis.py", "redis", "redis"),
        ("webhooks/certificates.py", "cryptography", "webhooks"),
        ("webhooks/paypal.py", "cryptography", "webhooks"),
    ],
)
def test_it_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, module: str, missing: str, extra: str) -> None:
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'onceward\[{extra}\]'"):
        runpy.run_path(str(PACKAGE / module), run_name=f"onceward.{module.removesuffix('.py').replace('/', '.')}")
