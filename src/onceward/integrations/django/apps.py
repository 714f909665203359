"""The app: `INSTALLED_APPS = [..., "onceward.integrations.django"]`."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class OncewardConfig(AppConfig):
    """Tables by `manage.py migrate`, `manage.py onceward`, checks, admin pages, and the handlers of the apps."""

    name = "onceward.integrations.django"
    label = "onceward"
    verbose_name = "onceward"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Find the project's inbox and its handlers."""
        from onceward.integrations.django import checks, project, tables  # noqa: PLC0415 - once the apps are there

        checks.register()
        project.load()
        post_migrate.connect(tables.complete, sender=self, dispatch_uid="onceward.tables")
