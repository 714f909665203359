"""What a shop sells."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """One of each kind of value that databases and Python see differently."""

    paid = models.IntegerField(default=0)
    placed_at = models.DateTimeField(null=True)
    is_gift = models.BooleanField(default=False)
    notes = models.JSONField(default=dict)
    total = models.DecimalField(max_digits=8, decimal_places=2, default=0)

    objects: ClassVar[models.Manager]  # mypy has no plugin for Django here

    class Meta:
        """Where it is."""

        app_label = "shop"

    def __str__(self) -> str:
        return f"order {self.pk}"


class Line(models.Model):
    """Refers to an order, which is checked at the commit."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    objects: ClassVar[models.Manager]

    class Meta:
        """Where it is."""

        app_label = "shop"

    def __str__(self) -> str:
        return f"a line of order {self.order_id}"
