"""Blobs in S3, or in anything that speaks its protocol. Credentials come from where AWS's own tools take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceward.errors import BlobsUnavailable

if TYPE_CHECKING:
    from obstore.store import S3Config

# Far below what a stop may take; what is not there after that is tried again by whoever wanted it.
_RETRIES = 2
_PATIENCE = timedelta(seconds=20)
_CHUNK = 1000


class S3:
    """A bucket, or a part of one."""

    def __init__(self, bucket: str, prefix: str, *, region: str | None = None, endpoint: str | None = None) -> None:
        config: S3Config = {}
        if region is not None:
            config["region"] = region
        if endpoint is not None:
            config["endpoint"] = endpoint
        self._where = f"s3://{bucket}/{prefix}"
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options={
                "allow_http": bool(endpoint and endpoint.startswith("http:")),
                "connect_timeout": timedelta(seconds=5),
                "timeout": _PATIENCE,
            },
            retry_config={"max_retries": _RETRIES, "retry_timeout": _PATIENCE},
        )

    def put(self, name: str, body: bytes) -> None:
        with self._trouble("write", name):
            self._store.put(name, body)

    def create(self, name: str, body: bytes) -> bool:
        with self._trouble("write", name):
            try:
                self._store.put(name, body, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def get(self, name: str) -> bytes | None:
        with self._trouble("read", name):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def delete(self, name: str) -> None:
        with self._trouble("remove", name):
            self._store.delete(name)

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        with self._trouble("list", folder):
            for chunk in self._store.list(folder, chunk_size=_CHUNK):
                for one in chunk:
                    yield one["path"], one["last_modified"]

    @contextmanager
    def _trouble(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            reason = str(error).partition("\n\nDebug")[0]
            raise BlobsUnavailable(f"cannot {what} the blob {name} in {self._where}: {reason}") from error
