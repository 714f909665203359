"""The dashboard: an ASGI application that shows an inbox and steers it. `onceward dashboard`, or mounted in your own.

Invariant: it changes nothing without an operator, a reason, and a request that came from its own page; what
messages contain is only ever shown as text.
"""

from __future__ import annotations

from onceward.errors import ConfigurationError

try:
    from onceward.dashboard.access import Credential, Person, Role
    from onceward.dashboard.app import Dashboard
except ImportError as error:
    raise ConfigurationError("the dashboard needs its packages: pip install 'onceward[dashboard]'") from error

__all__ = ["Credential", "Dashboard", "Person", "Role"]
