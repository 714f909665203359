"""onceward: the inbox for Python services. Every message takes effect exactly once, in the service's own database."""

from typing import TYPE_CHECKING, Any

from onceward.domain.breaker import Circuit
from onceward.domain.versions import one_row
from onceward.errors import (
    ConfigurationError,
    ContractViolation,
    InvalidMessage,
    OncewardError,
    OutcomeUnknown,
    PollFailed,
    StoreError,
    StoreUnavailable,
)
from onceward.inbox import Inbox
from onceward.message import Failure, Message, Receipt
from onceward.retry import Reject, Retry, RetryPolicy
from onceward.router import Router
from onceward.settings import Settings
from onceward.stores.parameters import execute

if TYPE_CHECKING:
    from onceward.polls.poll import Response

__version__ = "0.1.0"

__all__ = [
    "Circuit",
    "ConfigurationError",
    "ContractViolation",
    "Failure",
    "Inbox",
    "InvalidMessage",
    "Message",
    "OncewardError",
    "OutcomeUnknown",
    "PollFailed",
    "Receipt",
    "Reject",
    "Response",
    "Retry",
    "RetryPolicy",
    "Router",
    "Settings",
    "StoreError",
    "StoreUnavailable",
    "execute",
    "one_row",
]


def __getattr__(name: str) -> Any:
    """Only a program that polls APIs needs what belongs to that."""
    if name == "Response":
        from onceward.polls.poll import Response  # noqa: PLC0415 - see above

        return Response
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
