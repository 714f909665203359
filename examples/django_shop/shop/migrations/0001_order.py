"""Orders."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("amount", models.BigIntegerField()),
                ("confirmations", models.IntegerField(default=0)),
                ("payments", models.IntegerField(default=0)),
            ],
        ),
    ]
