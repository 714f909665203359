"""Which files are changed, and which tests may notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mutants.player import PACKAGE

_NO_SERVER = ("-k", "not postgres and not mariadb and not memory")
_STORE = ("tests/unit", "tests/contract/test_store_suite.py", *_NO_SERVER)


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


ROOMS = (
    Room("steps", ("steps/*.py",), _STORE),
    Room("stores", ("stores/relational/*.py", "stores/sqlite/*.py", "stores/*.py"), _STORE),
    Room("sql", ("stores/sql/portable.sql", "stores/sql/sqlite.sql"), _STORE),
    Room("webhooks", ("webhooks/*.py",), ("tests/webhooks", *_NO_SERVER)),
    Room("brokers", ("brokers/*.py",), ("tests/unit", "tests/sources", "-k", "redis or unit")),
    Room(
        "dashboard", ("dashboard/access.py", "dashboard/throttle.py"), ("tests/dashboard/test_access.py", *_NO_SERVER)
    ),
    Room("retention", ("retention/*.py", "steps/prune.py", "steps/erase.py"), ("tests/retention", *_NO_SERVER)),
)
