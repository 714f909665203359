"""Builds wheel and sdist, and installs them where nothing else is: `python -m proof.package [--every-extra]`.

Invariant: what is tried is what would be published, never the checkout: each environment is new, and its Python is run
from an empty folder.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    "blob": ["onceward.blobs.s3"],
    "cli": ["onceward.cli.app"],
    "dashboard": ["onceward.dashboard"],
    "django": ["onceward.integrations.django"],
    "fastapi": ["onceward.integrations.fastapi"],
    "http": ["onceward.sinks.http"],
    "kafka": ["onceward.brokers.kafka"],
    "mqtt": ["onceward.brokers.mqtt"],
    "nats": ["onceward.brokers.nats"],
    "opentelemetry": ["onceward.observability.opentelemetry"],
    "postgres": ["onceward.stores.postgres.store"],
    "prometheus": ["onceward.observability.prometheus"],
    "pubsub": ["onceward.brokers.pubsub"],
    "pulsar": ["onceward.brokers.pulsar"],
    "rabbitmq": ["onceward.brokers.rabbitmq"],
    "redis": ["onceward.brokers.redis", "onceward.stores.redis.store"],
    "serve": ["onceward.runtime.http_server"],
    "mysql": ["onceward.stores.mysql.store", "onceward.stores.mysql.aio"],
    "sqlite": ["onceward.stores.sqlite.aio"],
    "sqs": ["onceward.brokers.sqs"],
    "dynamodb": ["onceward.stores.dynamodb.store"],
    "sqlalchemy": ["onceward.integrations.sqlalchemy"],
    "webhooks": ["onceward.webhooks.paypal"],
}
"""What each extra is for. `standard` and `all` are made of others."""
MADE_OF_OTHERS = {"all", "standard"}
USED = """
from onceward import Inbox
inbox = Inbox("sqlite:///shop.db")
inbox.on("order.paid")(lambda message, tx: {"order": message.data})
for status in ("accepted", "duplicate"):
    assert inbox.receive(source="shop", id="1", type="order.paid", data=7).status == status
assert inbox.drain() == 1
"""
NEVER = (".venv", "__pycache__", ".db", "/.git/")


def extras() -> dict[str, list[str]]:
    """The extras of this package."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def run(*words: str | Path, folder: Path) -> str:
    """Run a command that must succeed."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path, *packages: str) -> Path:
    """A new environment with some packages; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    if packages:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, folder=folder)
    return python


def built(folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist of the checkout."""
    python = environment(folder / "build", "hatchling")
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", folder=ROOT)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    again = folder / "again"
    with tarfile.open(sdist) as archive:
        archive.extractall(again, filter="data")
    (unpacked,) = again.iterdir()
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", again / "dist", folder=unpacked)
    (other,) = (again / "dist").glob("*.whl")
    if names(other) != names(wheel):
        raise SystemExit(f"the wheel of the sdist has other files: {names(other) ^ names(wheel)}")
    return wheel, sdist


def names(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def check_content(wheel: Path, sdist: Path) -> None:
    """Nothing is missing, and nothing of a developer's machine is in it."""
    source = ROOT / "src"
    tracked = run("git", "ls-files", "src/onceward", folder=ROOT).splitlines()
    missing = {str((ROOT / name).relative_to(source)) for name in tracked} - names(wheel)
    if missing:
        raise SystemExit(f"the wheel lacks {sorted(missing)}")
    with tarfile.open(sdist) as archive:
        packed = set(archive.getnames())
    for one in (*names(wheel), *packed):
        if any(part in one for part in NEVER):
            raise SystemExit(f"not to be published: {one}")


def main() -> None:
    """Build, and try: the core alone, what the README installs, and with --every-extra each of them by itself."""
    known = extras()
    if MODULES.keys() | MADE_OF_OTHERS != known.keys():
        raise SystemExit(
            f"proof/package.py and pyproject.toml differ: {(MODULES.keys() | MADE_OF_OTHERS) ^ known.keys()}"
        )
    with tempfile.TemporaryDirectory(prefix="onceward-package-") as name:
        folder = Path(name)
        wheel, sdist = built(folder)
        check_content(wheel, sdist)
        say(f"built {wheel.name} and {sdist.name}, with the same files")
        core = environment(folder / "core", str(wheel))
        (folder / "empty").mkdir()
        run(core, "-c", USED, folder=folder / "empty")
        run(core, "-W", "error", "-m", "onceward.demo", folder=folder / "empty")
        others = run(core, "-m", "pip", "list", "--format=freeze", folder=folder).split()
        foreign = [one for one in others if not one.startswith(("onceward", "pip", "setuptools"))]
        if foreign:
            raise SystemExit(f"the core brings other packages: {foreign}")
        say("the core works alone, and so does the demo")
        tried = ["standard", *(sorted(MODULES) if "--every-extra" in sys.argv else [])]
        for extra in tried:
            python = environment(folder / extra, f"{wheel}[{extra}]")
            parts = {part for one in known["standard"] for part in one.split("[")[1].rstrip("]").split(",")}
            modules = [module for part in (parts if extra == "standard" else {extra}) for module in MODULES[part]]
            for module in modules:
                run(python, "-W", "error::ImportWarning", "-c", f"import {module}", folder=folder / "empty")
            say(f"onceward[{extra}]: {', '.join(sorted(modules))}")
        commands = folder / "standard" / "bin" / "onceward"
        run(commands, "--help", folder=folder / "empty")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
