"""The tables, and what Django's permissions are about."""

from django.db import migrations, models

from onceward.integrations.django.tables import numbered

Migration = numbered(
    __name__,
    migrations.CreateModel(
        name="Message",
        fields=[("seq", models.BigIntegerField(primary_key=True, serialize=False, verbose_name="number"))],
        options={
            "managed": False,
            "base_manager_name": "objects",
            "default_permissions": ("view",),
            "permissions": [
                ("read_message", "Can see payloads, keys and texts of errors"),
                ("operate_message", "Can redrive, unblock and discard messages"),
            ],
        },
    ),
)
