"""Sign out: a session of the dashboard ends before its time, in every process, also in those that start later.

Invariant: a session is a signed cookie and needs no row; a row says that it has ended. It stays for as long as the
cookie would be good.
"""

from __future__ import annotations

from onceward.flow import Flow, Query
from onceward.steps.context import Context, once


def sign_out(context: Context, session: str, seconds: float) -> Flow[None]:
    """End a session whose cookie is good for so many seconds at most."""
    ended = Query("sign_out", {"session": session, "seconds": seconds})
    yield from once(context, ended, Query("forget_sessions"))


def is_signed_out(context: Context, session: str) -> Flow[bool]:
    """Whether a session has ended."""
    (rows,) = yield from once(context, Query("signed_out", {"session": session}))
    return bool(rows)
