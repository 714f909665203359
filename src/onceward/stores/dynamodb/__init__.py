"""DynamoDB: one table for an inbox, and a `tx` that records. Its drivers load on demand."""

from __future__ import annotations

from importlib.util import find_spec

from onceward.errors import ConfigurationError
from onceward.stores.protocol import Store, StoreOptions


def open_store(url: str, options: StoreOptions) -> Store:
    """The store behind `dynamodb://region/table`."""
    if find_spec("boto3") is None:
        raise ConfigurationError("DynamoDB needs boto3. Install it: pip install 'onceward[dynamodb]'")
    from onceward.stores.dynamodb.store import parsed  # noqa: PLC0415 - needs boto3

    return parsed(url, options)
