"""Which files are changed, and which tests may notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mutants.player import PACKAGE

_NO_SERVER = ("-k", "not postgres and not mariadb and not memory")
_CONTRACT = (
    *("after_commit", "catalog", "claims", "direct", "fan_out", "handle", "hostile_handlers", "inline", "inside"),
    *("middleware", "mismatch", "numbers", "operators", "pauses", "reading", "receive", "selection", "store_suite"),
    "tables",
)
_SEEING = ("doctor", "dry_run", "explain", "failures_told", "replay")
_RETENTION = tuple(f"tests/retention/test_{name}.py" for name in ("archive", "blobs", "erase", "prune"))
_STORE = (
    "tests/unit",
    *(f"tests/contract/test_{name}.py" for name in _CONTRACT),
    *(f"tests/seeing/test_{name}.py" for name in _SEEING),
    *("tests/order/test_dead_heads.py", "tests/order/test_keys.py", "tests/outbox/test_send.py"),
    *(*_RETENTION, *_NO_SERVER),
)


@dataclass(frozen=True, slots=True)
class Room:
    """A part of the package with the tests of its own."""

    name: str
    files: tuple[str, ...]
    """Patterns below `src/onceward`."""
    tests: tuple[str, ...]
    """Arguments for pytest; whichever of these tests runs a line may notice its change."""

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Each file with its content."""
        for pattern in self.files:
            for path in sorted(PACKAGE.glob(pattern)):
                yield path.relative_to(PACKAGE).as_posix(), path.read_bytes()


_BROKERS = ("consumer", "deadlines", "debezium", "envelope", "mqtt", "nats", "positions", "protocol", "redis")
"""And what they share; the servers of the others take longer to start than most changes live."""
_SOURCES = ("cloudevents", "contract", "deadlines", "debezium", "mqtt", "nats", "positions", "redis")

ROOMS = (
    Room("steps", ("steps/*.py",), _STORE),
    Room("stores", ("stores/relational/*.py", "stores/sqlite/*.py", "stores/*.py"), _STORE),
    Room("sql", ("stores/sql/portable.sql", "stores/sql/sqlite.sql"), _STORE),
    Room("webhooks", ("webhooks/*.py",), ("tests/webhooks", "tests/unit/test_extras.py", *_NO_SERVER)),
    Room(
        "brokers",
        tuple(f"brokers/{name}.py" for name in _BROKERS),
        (
            *("tests/unit/test_consumer.py", "tests/unit/test_consumer_pauses.py"),
            *("tests/unit/test_envelope.py", "tests/unit/test_extras.py"),
            *(f"tests/sinks/test_{name}.py" for name in ("confirmation", "contract", "streams")),
            *(f"tests/sources/test_{name}.py" for name in _SOURCES),
            *("-k", "not kafka and not pubsub and not pulsar and not rabbit and not sqs and not (redis and postgres)"),
        ),
    ),
    Room(
        "dashboard",
        ("dashboard/access.py", "dashboard/throttle.py"),
        (
            *("tests/dashboard/test_access.py", "tests/dashboard/test_requests.py"),
            *("tests/dashboard/test_throttle.py", *_NO_SERVER),
        ),
    ),
    Room(
        "retention",
        ("retention/*.py", "steps/prune.py", "steps/erase.py"),
        (
            *(*_RETENTION, "tests/retention/test_maintenance.py", "tests/retention/test_tidy.py"),
            "tests/seeing/test_replay.py",
            *("tests/unit/test_steps_erase.py", "tests/unit/test_steps_prune.py", "tests/unit/test_wrong_uses.py"),
            *_NO_SERVER,
        ),
    ),
)
