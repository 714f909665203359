"""A private Kafka: one node that is broker and controller (KRaft), small, on a JVM of its own.

A client that has found a broker goes on to the addresses which that broker advertises; so a second listener advertises
the port of a fault proxy, and whoever begins there stays behind it. Two more ask for passwords: one as they are, one
with SCRAM and over TLS, whose user an administrator makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.certificates import papers
from tests.servers.ports import free_port
from tests.servers.private import PASSWORD, USER, PrivateServer
from tests.servers.proxy import FaultProxy

_JVM = "-Xms32m -Xmx192m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_LOG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxied},SASL://127.0.0.1:{sasl},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy},SASL://127.0.0.1:{sasl},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={papers}
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={jaas};
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=500
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.io.buffer.size=65536
"""
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}"'
# What `kafka-storage.sh format` would write, which takes a second.
_META = "version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\ndirectory.id=CvcdclpgabuWXUKcWxT5Aw\n"


class KafkaServer(PrivateServer):
    """A Kafka of one's own."""

    name = "Kafka"
    ready = "Kafka Server started"

    def __init__(self) -> None:
        super().__init__(install.java_program())
        self._libraries = install.KAFKA.libraries()
        self._proxied, self._controller = free_port(), free_port()
        self.sasl_port, self.secure_port = free_port(), free_port()
        self.proxy = FaultProxy("127.0.0.1", self._proxied).start()
        data = self.folder / "data"
        data.mkdir()
        self.write("data/meta.properties", _META)
        data.chmod(0o777)  # the server runs as another user

    def command(self, port: int) -> Sequence[str | Path]:
        known = papers()
        settings = _SETTINGS.format(
            papers=self.write("papers.pem", known.key + known.certificate),
            secure=self.secure_port,
            port=port,
            proxied=self._proxied,
            proxy=self.proxy.port,
            sasl=self.sasl_port,
            jaas=_JAAS,
            controller=self._controller,
            data=self.folder / "data",
        )
        path = self.write("server.properties", settings)
        return [self._program, *_JVM.split(), *_LOG.split(), "-cp", f"{self._libraries}/*", "kafka.Kafka", path]

    @property
    def version(self) -> str:
        return install.KAFKA.version

    def close(self) -> None:
        super().close()
        self.proxy.close()
