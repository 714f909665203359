"""Django: handlers whose ORM is in the transaction of their message, `receive` in `atomic()`, an app for projects.

`DjangoInbox` takes its database from `DATABASES`; `"onceward.integrations.django"` in `INSTALLED_APPS` adds the rest.
"""

from onceward.errors import ConfigurationError

try:
    import django  # noqa: F401 - what follows needs it
except ImportError as error:
    raise ConfigurationError("DjangoInbox needs Django: pip install 'onceward[django]'") from error

from onceward.integrations.django.inbox import DjangoInbox

__all__ = ["DjangoInbox"]
