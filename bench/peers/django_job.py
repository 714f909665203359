"""The job of django-tasks-db; importable only after Django has its settings."""

from __future__ import annotations

from django_tasks import task

from bench.peers.adapter import TALLY


@task
def job(body: str) -> None:
    """Decode the body."""
    TALLY.run(body)
