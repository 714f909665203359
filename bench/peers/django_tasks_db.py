"""django-tasks-db: its worker in batch mode, which ends when nothing is left."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings as django_settings
from django.core.management import call_command

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell


def _job(url: str) -> Any:
    """Django wants its settings before anything else of it is imported."""
    address = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.path.lstrip("/"),
        "USER": address.username,
        "HOST": address.hostname,
        "PORT": address.port,
        "CONN_MAX_AGE": None,
    }
    django_settings.configure(
        INSTALLED_APPS=["django_tasks", "django_tasks_db"],
        DATABASES={"default": database},
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    from bench.peers.django_job import job  # noqa: PLC0415 - see above

    return job


def fill(url: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs."""
    job = _job(url)
    call_command("migrate", verbosity=0)
    for bodies in texts(count):
        for body in bodies:
            job.enqueue(body)


def drain(url: str, _settings: Settings) -> None:
    """One process of a race."""
    _job(url)
    ready()
    call_command("db_worker", "--batch", "--no-startup-delay", verbosity=0)
    tell(TALLY.answer())
