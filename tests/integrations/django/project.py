"""Django in the process of the tests: set up once, its database another for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit


def configured_django() -> None:
    """Set Django up, once in a process."""
    import django  # noqa: PLC0415 - where it is needed
    from django.conf import settings  # noqa: PLC0415

    if settings.configured:
        return
    settings.configure(
        ROOT_URLCONF="tests.webhooks.test_mounting",
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of the tests",
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        LOGGING_CONFIG=None,
        USE_TZ=True,
        TIME_ZONE="UTC",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "onceward.integrations.django",
            "tests.integrations.django.shop",
        ],
    )
    django.setup()


def entry(url: str, **more: Any) -> dict[str, Any]:
    """What `DATABASES` says of a database."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///"), **more}
    parts = urlsplit(url)
    if parts.scheme == "mysql":
        import pymysql  # noqa: PLC0415 - mysqlclient, which Django wants, has no wheels

        pymysql.install_as_MySQLdb()
    return {
        "ENGINE": f"django.db.backends.{parts.scheme}",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        **more,
    }


@contextmanager
def database(url: str, alias: str = "default", **more: Any) -> Iterator[None]:
    """Django's database is this one."""
    from django.db import connections  # noqa: PLC0415 - it must be set up first

    before = connections.settings.get(alias)
    _use(alias, entry(url, **more))
    try:
        yield
    finally:
        _use(alias, before)


def _use(alias: str, wanted: dict[str, Any] | None) -> None:
    from django.db import connections  # noqa: PLC0415 - as above

    if alias in connections.settings:
        connections[alias].close()
        del connections[alias]
    if wanted is None:
        del connections.settings[alias]
    else:
        both = {"default": {}, alias: wanted}
        connections.settings[alias] = connections.configure_settings(both)[alias]
