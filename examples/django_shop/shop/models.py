"""What the shop keeps."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """An order, and how often its messages took effect."""

    id = models.CharField(max_length=32, primary_key=True)
    amount = models.BigIntegerField()
    confirmations = models.IntegerField(default=0)
    payments = models.IntegerField(default=0)

    objects: ClassVar[models.Manager]

    def __str__(self) -> str:
        return f"order {self.id}"
