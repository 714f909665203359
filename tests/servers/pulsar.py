"""A private Pulsar: broker, bookie and metadata in one process, small, on a JVM of its own.

A client that has asked a broker for a topic goes on to the address which that broker advertises; so a second listener
advertises the port of a fault proxy, and whoever begins there stays behind it. A third is TLS. Who shows a token must
show a good one; who shows none is nobody in particular.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.private import USER, PrivateServer
from tests.servers.proxy import FaultProxy
from tests.waiting import wait_until

NAMESPACE = "public/default"

_JVM = (
    "-Xms64m -Xmx384m -XX:MaxDirectMemorySize=384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    " -Dio.netty.tryReflectionSetAccessible=true -Dpulsar.allocator.pooled=false"
)
_OPENED = ("sun.net", "jdk.internal.misc", "jdk.internal.platform", "java.nio", "sun.nio.ch", "java.lang")
_OPENED_ELSEWHERE = (
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
    "java.base/java.util.zip",
)
_LOG = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1} %m%n
rootLogger.level=error
rootLogger.appenderRef.console.ref=console
logger.service.name=org.apache.pulsar.broker.PulsarService
logger.service.level=info
"""
_SETTINGS = """\
brokerServicePort={port}
webServicePort={web}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
bindAddresses=proxied:pulsar://127.0.0.1:{proxied},secure:pulsar+ssl://127.0.0.1:{secure}
advertisedListeners=internal:pulsar://127.0.0.1:{port},proxied:pulsar://127.0.0.1:{proxy},secure:pulsar+ssl://127.0.0.1:{secure}
internalListenerName=internal
tlsCertificateFilePath={certificate}
tlsKeyFilePath={key}
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=data:;base64,{secret}
anonymousUserRole=nobody
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:{token}
clusterName=standalone
allowLoopback=true
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=16
loadBalancerEnabled=false
numIOThreads=2
numHttpServerThreads=4
bookkeeperNumberOfChannelsPerBookie=2
dbStorage_writeCacheMaxSizeMb=16
dbStorage_readAheadCacheMaxSizeMb=16
dbStorage_rocksDB_blockCacheSize=16777216
dbStorage_rocksDB_writeBufferSizeMB=4
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
systemTopicEnabled=true
topicLevelPoliciesEnabled=true
acknowledgmentAtBatchIndexLevelEnabled=true
brokerDeduplicationEnabled=true
transactionCoordinatorEnabled=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
diskUsageLwmThreshold=0.97
minUsableSizeForIndexFileCreation=1024
minUsableSizeForEntryLogCreation=1024
"""
_SECRET = b"the tests' own secret key, that nobody else has"


def token(user: str) -> str:
    """What says who one is, signed as a JWT."""
    parts: list[dict[str, Any]] = [{"alg": "HS256"}, {"sub": user}]
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.digest(_SECRET, text.encode(), 'sha256'))}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


class PulsarServer(PrivateServer):
    """A Pulsar of one's own."""

    name = "Pulsar"
    form = "pulsar://127.0.0.1:{port}"
    ready = "messaging service is ready"
    patience_seconds = 90.0

    def __init__(self) -> None:
        super().__init__(install.java_program())
        self._libraries = install.PULSAR.libraries()
        self._proxied, self.web_port, self.secure_port, self._bookie = (free_port() for _ in range(4))
        self.proxy = FaultProxy("127.0.0.1", self._proxied).start()

    def command(self, port: int) -> Sequence[str | Path]:
        certificate, key = self.write_papers()
        settings = _SETTINGS.format(
            port=port,
            web=self.web_port,
            proxied=self._proxied,
            proxy=self.proxy.port,
            secure=self.secure_port,
            certificate=certificate,
            key=key,
            secret=base64.b64encode(_SECRET).decode(),
            token=token(USER),
        )
        path, log = self.write("standalone.conf", settings), self.write("log4j2.properties", _LOG)
        opened = [f"java.base/{package}" for package in _OPENED] + [*_OPENED_ELSEWHERE]
        words: list[str | Path] = [self._program, *_JVM.split(), f"-Dlog4j2.configurationFile={log}"]
        words += [word for one in opened for word in ("--add-opens", f"{one}=ALL-UNNAMED")]
        words += ["-cp", f"{self._libraries}/*", "org.apache.pulsar.PulsarStandaloneStarter", "--config", path]
        words += ["--metadata-dir", self.folder / "metadata", "--bookkeeper-dir", self.folder / "bookkeeper"]
        return [*words, "--bookkeeper-port", str(self._bookie), "--advertised-address", "127.0.0.1", "-nss", "-nfw"]

    def start(self) -> Self:
        """Start; returns when there is the namespace where topics are made, which comes after the broker."""
        super().start()
        wait_until(self._has_namespace, timeout=self.patience_seconds, message="public/default")
        return self

    def asked(self, path: str, given: Any = None) -> Any:
        """What the administration answers to a question, or to something given."""
        url = f"http://127.0.0.1:{self.web_port}/admin/v2/{path}"
        headers = {"Authorization": f"Bearer {token(USER)}", "Content-Type": "application/json"}
        body, method = (None, "GET") if given is None else (json.dumps(given).encode(), "PUT")
        with urlopen(Request(url, body, headers, method=method), timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _has_namespace(self) -> bool:
        try:
            return bool(self.asked(f"namespaces/{NAMESPACE}"))
        except OSError:
            return False

    @property
    def version(self) -> str:
        return install.PULSAR.version

    def close(self) -> None:
        super().close()
        self.proxy.close()
