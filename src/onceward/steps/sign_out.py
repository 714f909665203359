"""Sign out: a session of the dashboard ends before its time, in every process, also in those that start later.

Invariant: a session is a signed cookie and needs no row; a row says that it has ended. It stays for as long as the
cookie would be good.
"""

from __future__ import annotations

from onceward.flow import Flow
from onceward.steps.context import Context


def sign_out(context: Context, session: str, seconds: float) -> Flow[None]:
    """End a session whose cookie is good for so many seconds at most."""
    yield from context.moves.operations.sign_out(session, seconds)


def is_signed_out(context: Context, session: str) -> Flow[bool]:
    """Whether a session has ended."""
    return (yield from context.moves.operations.is_signed_out(session))
