"""What the admin and Django's permissions are about. It has no table: its pages ask the inbox (`admin.py`)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Nothing(models.Manager):
    """Finds no rows, so that what goes through all models, such as `dumpdata`, asks no database."""

    def get_queryset(self) -> Any:
        """None."""
        return super().get_queryset().none()


class Message(models.Model):
    """A message of an inbox."""

    seq = models.BigIntegerField("number", primary_key=True)

    objects: ClassVar[Any] = Nothing()

    class Meta:
        """Roles: each permission allows what the one before does not."""

        app_label = "onceward"
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions: ClassVar[list[tuple[str, str]]] = [
            ("read_message", "Can see payloads, keys and texts of errors"),
            ("operate_message", "Can redrive, unblock and discard messages"),
        ]

    def __str__(self) -> str:
        return f"message {self.seq}"
