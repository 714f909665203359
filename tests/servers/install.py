"""Getting the servers the tests need.

Invariant: a server that is missing is installed or the run fails, naming the package to install; it is never
skipped. Several test workers may ask at once: one installs, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOCK = Path("/run/onceward-tests-install.lock")
_POLICY = Path("/usr/sbin/policy-rc.d")


class ServerMissing(Exception):
    """A server the tests need is not installed and cannot be installed from here."""


def ensure(package: str, *, probe: Callable[[], Path | None]) -> Path:
    """What `probe` finds, installing the Debian package first when it finds nothing."""
    if found := probe():
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
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


def postgresql_bin() -> Path:
    """The folder with `initdb` and `postgres`, of the newest version there is."""
    return ensure("postgresql", probe=_find_postgresql)


def pgbouncer_program() -> Path:
    """The `pgbouncer` program."""
    return ensure("pgbouncer", probe=_find_pgbouncer)


def redis_program() -> Path:
    """The `redis-server` program."""
    return ensure("redis-server", probe=lambda: _find("redis-server"))


def nats_program() -> Path:
    """The `nats-server` program."""
    return ensure("nats-server", probe=lambda: _find("nats-server"))


def chromium_program() -> Path:
    """The browser."""
    return ensure("chromium", probe=lambda: _find("chromium"))


def chromedriver_program() -> Path:
    """What drives the browser."""
    return ensure("chromium-driver", probe=lambda: _find("chromedriver"))


def _find(program: str) -> Path | None:
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


def _find_pgbouncer() -> Path | None:
    # A plain user's PATH on Debian lacks the sbin folders.
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


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
    with _LOCK.open("w") as lock:
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
