"""A private RabbitMQ, with a second port for TLS.

Invariant: nothing of it listens beyond loopback, and its port mapper (epmd), which Erlang would otherwise start as a
daemon for ever, is a process of ours like the broker itself.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.private import PrivateServer
from tests.servers.process import ServerProcess
from tests.waiting import wait_until

_NODE = "onceward@localhost"
# It does not spin while it waits: the tests beside it need the processor.
_ERLANG = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
_ATTEMPTS = 10
_CONFIGURATION = """\
listeners.ssl.1 = 127.0.0.1:{secure}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""


class RabbitServer(PrivateServer):
    """A RabbitMQ of one's own."""

    name = "RabbitMQ"
    form = "amqp://127.0.0.1:{port}/"
    ready = "Server startup complete"
    patience_seconds = 100.0

    def __init__(self) -> None:
        super().__init__(install.rabbitmq_program())
        self._mapper = ServerProcess("epmd")
        self._mapper_port = 0
        self.secure_port = free_port()

    def command(self, port: int) -> Sequence[str | Path]:
        if not self._mapper.running:
            self._start_mapper()
        certificate, key = self.write_papers()
        text = _CONFIGURATION.format(secure=self.secure_port, certificate=certificate, key=key)
        settings = {
            "HOME": self.folder,  # where the cookie is
            "ERL_EPMD_PORT": self._mapper_port,
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": self.write("rabbitmq.conf", text),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), self._program]

    @property
    def version(self) -> str:
        """The version; asking the program would start another Erlang."""
        return self._program.resolve().parent.parent.name.removeprefix("rabbitmq_server-")

    def unsettled(self, queue: str) -> int:
        """How many messages of a quorum queue are not acknowledged, delivered or not: AMQP tells only the rest."""
        query = (
            f'case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>,queue,<<"{queue}">>)) of '
            "{ok,Q} -> {ok,{_,N},_} = ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N;"
            "_ -> 0 end.\n"
        )

        def answered() -> str:
            answer = self._evaluate(query)
            return answer if answer.isdigit() else ""  # after a restart the queue elects a leader first

        return int(wait_until(answered, message=f"an answer about the queue {queue}"))

    def kill(self) -> None:
        # Its list of quorum queues is on disk only minutes after a queue was made, and the queue lost by a crash before
        # that. The queues of tests are young, and shall count as old ones.
        if self.running:
            self._evaluate("[dets:sync(Table) || Table <- dets:all()].\n")
        super().kill()

    def close(self) -> None:
        super().close()
        self._mapper.close()

    def _evaluate(self, expression: str) -> str:
        """What the broker itself answers to a line of Erlang."""
        cookie = (self.folder / ".erlang.cookie").read_text()
        done = subprocess.run(
            ["erl_call", "-n", _NODE, "-c", cookie, "-e"],
            input=expression,
            env={"ERL_EPMD_PORT": str(self._mapper_port), "PATH": "/usr/bin:/usr/local/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.removeprefix("{ok, ").removesuffix("}")

    def _start_mapper(self) -> None:
        for port in [self._mapper_port] if self._mapper_port else [free_port() for _ in range(_ATTEMPTS)]:
            self._mapper.launch("epmd", "-port", str(port), "-address", "127.0.0.1")
            names = ["epmd", "-port", str(port), "-names"]
            wait_until(
                lambda names=names: (  # type: ignore[misc]
                    subprocess.run(names, capture_output=True, check=False).returncode == 0 or not self._mapper.running
                ),
                message="Erlang's port mapper",
            )
            if self._mapper.running:
                self._mapper_port = port
                return
            self._mapper.end(signal.SIGTERM)
        raise RuntimeError(f"Erlang's port mapper did not start:\n{self._mapper.log()}")
