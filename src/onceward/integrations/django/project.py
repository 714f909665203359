"""The inboxes of a Django project: which one its commands are about, and the handlers that its apps have.

Invariant: after `load()` every handler in an `inbox_handlers.py` is registered, in each process in which Django is set
up; what cannot be imported stops the start.
"""

from __future__ import annotations

from importlib import import_module

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from onceward.domain.discovery import name_of
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.integrations.django.inbox import DjangoInbox, inboxes
from onceward.router import Router

SETTING = "ONCEWARD_INBOX"
HANDLERS = "inbox_handlers"
"""The module of an app that has handlers."""
COMMAND = "python manage.py onceward"


def load() -> None:
    """Import the project's inbox and the handlers of its apps; routers in there are included in that inbox."""
    named = given()
    if named is not None:
        found_at(named)
    routers = [router for app in apps.get_app_configs() for router in _routers(app)]
    for router in routers:
        inbox = project_inbox()
        if inbox not in router.included_in:
            inbox.include(router)
    for inbox in inboxes():
        inbox.context.command = COMMAND
        inbox.context.program = name_of(inbox) or inbox.context.program


def given() -> str | None:
    """What the setting says."""
    named: str | None = getattr(settings, SETTING, None)
    return named


def project_inbox() -> Inbox:
    """The inbox of the setting, or the only one there is."""
    named = given()
    if named is not None:
        return found_at(named)
    known = inboxes()
    if len(known) == 1:
        return known[0]
    what = (
        "the project has no DjangoInbox: write `inbox = DjangoInbox()` in shop/inbox.py, and handlers in "
        f"shop/{HANDLERS}.py of an app"
        if not known
        else f"the project has {len(known)} inboxes"
    )
    raise ConfigurationError(f'{what}; name the one of the commands in the settings: {SETTING} = "shop.inbox:inbox"')


def project_inbox_name() -> str:
    """The same as MODULE:ATTR."""
    inbox = project_inbox()
    named = given() or name_of(inbox)
    if named is None:
        raise ConfigurationError(
            f"the project's inbox is in no module's variable; name it in one: {SETTING} = 'shop.inbox:inbox'"
        )
    return named


def found_at(named: object) -> Inbox:
    """The inbox at MODULE:ATTR."""
    module, _, attribute = named.partition(":") if isinstance(named, str) else ("", "", "")
    if not (module and attribute):
        raise ImproperlyConfigured(f'{SETTING} must be of the form "shop.inbox:inbox", not {named!r}')
    found = getattr(import_module(module), attribute, None)
    if not isinstance(found, Inbox):
        raise ImproperlyConfigured(f"{SETTING}: {named!r} is no inbox; write `{attribute} = DjangoInbox()` in {module}")
    return found


def of_database(alias: str) -> list[DjangoInbox]:
    """Those in a database of `DATABASES`, one for each prefix."""
    found = {inbox.store.prefix: inbox for inbox in inboxes(alias)}
    return [*found.values()]


def _routers(app: object) -> list[Router]:
    module = getattr(app, "module", None)
    if module is None or not module_has_submodule(module, HANDLERS):
        return []
    handlers = import_module(f"{module.__name__}.{HANDLERS}")
    return [value for value in vars(handlers).values() if isinstance(value, Router)]
