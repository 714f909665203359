"""Everything that can go wrong, by what the reader can do about it.

`Retry` and `Reject` (see `retry.py`) are signals of a handler, not errors, and stand outside this tree.
"""

from __future__ import annotations


class OncewardError(Exception):
    """Base of every error that onceward raises."""


class ConfigurationError(OncewardError):
    """The program is set up wrongly; nothing was stored or run."""


class SchemaMissing(ConfigurationError):
    """The database has no onceward tables yet."""


class SchemaOutdated(ConfigurationError):
    """The database's tables are older or newer than this version of onceward."""


class HandlerNotFound(ConfigurationError):
    """No handler is registered for the type and version of a message."""


class VersionUnknown(HandlerNotFound):
    """This program has handlers for the type of a message and none for its version."""

    def __init__(self, text: str, line: str, *, newer: bool) -> None:
        super().__init__(text)
        self.line = line
        """What the row of a worker that has one holds (`Registry.handles`)."""
        self.newer = newer
        """It is newer than every version that is known here: a newer program is perhaps about to start."""


class InvalidMessage(OncewardError):
    """A message cannot be accepted or cannot be read; the text says which part of it and why."""


class DataInvalid(InvalidMessage):
    """The data of a message does not fit the model of its handler; the text has the fields, and none of the values."""

    def __init__(self, model: str, fields: tuple[tuple[str, str], ...], *, most: int = 10) -> None:
        told = [f"{place} {problem}" if place else problem for place, problem in fields[:most]]
        more = f"; and {len(fields) - most} more" if len(fields) > most else ""
        super().__init__(f"the data does not fit {model}: {'; '.join(told)}{more}")
        self.fields = fields
        """Each field that is wrong, as a path, with what is wrong with it."""


class ContractViolation(OncewardError):
    """A handler broke the one rule: returning commits, raising rolls back, nothing else may."""


class TransactionAborted(ContractViolation):
    """A handler swallowed a database error and returned; its transaction could only be rolled back."""


class OutcomeUnknown(OncewardError):
    """An external effect was begun and whether it happened is unknown; an operator must decide."""


class PollFailed(OncewardError):
    """A poll's function raised; the cursor stands where its last stored response ends, and the next turn goes on."""

    def __init__(self, text: str, left: float) -> None:
        super().__init__(text)
        self.left = left
        """In how many seconds it is tried again."""


class NeedsAlone(BaseException):
    """A handler used `message.once` where it cannot be recorded: it is run again, alone. Never reaches a user.

    That is inside a group, or, where there is one writer, in the transaction that receives its message.
    """


class TransactionEnded(ContractViolation):
    """The transaction of a handler is not the one it was given."""

    def __init__(self) -> None:
        super().__init__(
            "the handler ended the transaction it was given (a COMMIT or ROLLBACK inside a statement or procedure); "
            "what it committed by itself is not undone. Returning commits, raising rolls back: remove the statement"
        )


class HandlerTimeout(OncewardError):
    """A handler ran longer than its `timeout`; what it had done was rolled back."""


class StoreError(OncewardError):
    """The database refused or could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached or is too busy; nothing is known to be stored. Try again later."""


class RightsMissing(StoreError):
    """The role of this program may not do that in the database."""


class StoreBusy(StoreUnavailable):
    """Another transaction held what this one needs for as long as the caller was ready to wait; try again later.

    That is another copy of the message, which is being processed, or on SQLite any other writer. The database itself is
    there, so nothing is spooled, and trying at once again is no use.
    """


class BlobsUnavailable(StoreUnavailable):
    """The store of large bodies cannot be reached, or this program has none. Try again later."""


class BodyLost(OncewardError):
    """A large body is not in the blob store, or is not what was stored there."""


class StoreConflict(StoreError):
    """Deadlock or serialization failure: the transaction was rolled back; trying again may succeed."""


class GuardFailed(StoreError):
    """A guarded statement found that a row is not in the state its writer believed."""


class ClaimLost(StoreError):
    """Another worker has taken a message over; everything this attempt did was rolled back."""
