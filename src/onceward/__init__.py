"""onceward: the inbox for Python services. Every message takes effect exactly once, in the service's own database."""

from onceward.errors import (
    ConfigurationError,
    ContractViolation,
    InvalidMessage,
    OncewardError,
    StoreError,
    StoreUnavailable,
)
from onceward.inbox import Inbox
from onceward.message import Message, Receipt
from onceward.retry import Reject, Retry, RetryPolicy
from onceward.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "ContractViolation",
    "Inbox",
    "InvalidMessage",
    "Message",
    "OncewardError",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Settings",
    "StoreError",
    "StoreUnavailable",
]
