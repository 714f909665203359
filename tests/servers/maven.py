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


def _fetch(version: str, fetching: Path, maven: Path) -> Path:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    artifact = _ARTIFACT.format(system=sys.platform, machine=machine, version=version)
    command = [str(maven), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={fetching}"]
    command += shlex.split(os.environ.get("MAVEN_ARGS", ""))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"PostgreSQL {version} could not be fetched with Maven:\n{done.stdout}{done.stderr}")
    (jar,) = fetching.glob("*.jar")
    with zipfile.ZipFile(jar) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".txz"))
        packed.extract(name, fetching)
    unpacked = fetching / "unpacked"
    with tarfile.open(fetching / name, mode="r:xz") as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked
