"""django-tasks-db: its worker in batch mode, which ends when nothing is left."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


def _job(url: str) -> Any:
    """Django wants its settings before anything else of it is imported."""
    address = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.path.lstrip("/"),
        "USER": address.username,
        "HOST": address.hostname,
        "PORT": address.port,
    }
    settings.configure(
        INSTALLED_APPS=["django_tasks", "django_tasks_db"],
        DATABASES={"default": database},
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    from bench.peers.django_job import job  # noqa: PLC0415 - see above

    return job


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""
    job = _job(url)
    call_command("migrate", verbosity=0)
    for number in range(count):
        job.enqueue(text(number))


def drain(url: str, _count: int) -> None:
    """One process of a race."""
    _job(url)

    def work() -> Answer:
        call_command("db_worker", "--batch", "--no-startup-delay", "--interval", "0.1", verbosity=0)
        return TALLY.answer()

    take_part(work)
