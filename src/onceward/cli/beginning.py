"""`onceward init`: write a small service that runs at once, and say what to run.

Invariant: nothing that is there already is changed; either all files are written, or none.
"""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.text import examples, say

FRAMEWORKS = ("plain", "fastapi", "flask", "django")
STORES = {
    "sqlite": '"sqlite:///service.db"',
    "postgresql": 'os.environ.get("DATABASE_URL", "postgresql://localhost/service")',
}
LOCK = "\n    tx.execute(\"SELECT pg_advisory_xact_lock(hashtext('service'))\")  # several processes may start at once"
DISPOSABLE = {
    "sqlite": "monkeypatch.chdir(tmp_path)  # a database of its own",
    "postgresql": 'monkeypatch.setenv("DATABASE_URL", os.environ["TEST_DATABASE_URL"])  # one that may be emptied',
}
SQLITE = """
FOLDER = Path(__file__).parents[1]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "service.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # a block that reads first may write later
        "TEST": {"NAME": FOLDER / "test.db"},  # a file: workers have connections of their own
    }
}
"""
POSTGRESQL = """from urllib.parse import unquote, urlsplit

FOLDER = Path(__file__).parents[1]
address = urlsplit(os.environ.get("DATABASE_URL", "postgresql://localhost/service"))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.path.removeprefix("/"),
        "USER": unquote(address.username or ""),
        "PASSWORD": unquote(address.password or ""),
        "HOST": address.hostname or "",
        "PORT": str(address.port or ""),
    }
}
"""
DATABASES = {"sqlite": SQLITE, "postgresql": POSTGRESQL}
"""In Django's settings."""
SERVERS = {
    "plain": "onceward run --reload --http 8080",
    "fastapi": "uvicorn web:app --port 8080",
    "flask": "flask --app web run --port 8080",
    "django": "python manage.py runserver 8080",
}
PACKAGES = {"plain": (), "fastapi": ("fastapi", "uvicorn"), "flask": ("flask",), "django": ("django",)}
COMMANDS = {"django": "python manage.py onceward"}
"""The command line, where it is another than `onceward`."""
MIGRATIONS = {"django": "python manage.py migrate"}

DJANGO = {
    **{name: f"django/{name}" for name in ("manage.py", "test_service.py", "pyproject.toml")},
    **{
        f"service/{name}": f"django/{name}"
        for name in ("settings.py", "urls.py", "models.py", "inbox.py", "inbox_handlers.py", "views.py")
    },
    "service/migrations/0001_payment.py": "django/0001_payment.py",
    "service/__init__.py": "",
    "service/migrations/__init__.py": "",
}
"""What a project of Django's is made of."""


@click.command(
    short_help="Write a small service that runs at once.",
    epilog=examples("onceward init shop", "onceward init shop --framework fastapi --store postgresql"),
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), default="plain", show_default=True, help="For its web side."
)
@click.option("--store", type=click.Choice(list(STORES)), default="sqlite", show_default=True, help="Its database.")
def init(folder: Path, *, framework: str, store: str) -> None:
    """Write a service with a handler, a webhook endpoint and a proof, and print the commands that run it."""
    written = content(folder.resolve().name, framework, store)
    there = [name for name in written if (folder / name).exists()]
    if there:
        raise Failure(
            f"{folder.resolve()} has {', '.join(there)} already, and nothing is overwritten. Choose another folder: "
            "onceward init shop",
            WRONG_USAGE,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    say(f"Wrote {', '.join(written)} in {folder.resolve()}. Run it:")
    for line in commands(folder, framework, store):
        say(f"  {line}")


def content(name: str, framework: str, store: str) -> dict[str, str]:
    """The files of a service, by name."""
    named = {"service.py": "service.py", "test_service.py": "test_service.py", "pyproject.toml": "pyproject.toml"}
    if framework == "django":
        named = dict(DJANGO)
    elif framework != "plain":
        named["web.py"] = f"{framework}.py"
    dependencies = ", ".join(f'"{one}"' for one in ("onceward[standard]", *PACKAGES[framework]))
    values = {
        "url": STORES[store],
        "lock": LOCK if store == "postgresql" else "",
        "imports": "import os\n" if store == "postgresql" else "",
        "disposable": DISPOSABLE[store],
        "database": DATABASES[store],
        "name": re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "service",
        "dependencies": dependencies,
    }
    folder = files("onceward.cli") / "template"
    return {
        target: Template((folder / f"{source}.txt").read_text(encoding="utf-8")).substitute(values) if source else ""
        for target, source in named.items()
    }


def commands(folder: Path, framework: str, store: str) -> list[str]:
    """What to run, one after the other."""
    lines = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    if framework != "plain":
        lines.append(f"pip install {' '.join(PACKAGES[framework])}")
    onceward = COMMANDS.get(framework, "onceward")
    if store == "postgresql":
        lines.append("export DATABASE_URL=postgresql://localhost/service")
    if store == "postgresql" or framework in MIGRATIONS:
        lines.append(MIGRATIONS.get(framework, "onceward migrate"))
    lines.append(f"{SERVERS[framework]} &")
    if framework != "plain":
        lines.append(f"{onceward} run --reload &")
    data = '{"id": "pi_1", "account": "a-7", "amount": 1900}'
    lines += [
        f"{onceward} send payment.received --data '{data}' --copies 2",
        f"{onceward} status",
        f"{onceward} dashboard",
    ]
    return lines
