"""A short name for a kind of error, the same for every message that fails in the same way.

What differs from message to message (numbers, ids, quoted values, addresses) is taken out of the text first.
"""

from __future__ import annotations

import re

from onceward.deferred import hashlib

_VARYING = re.compile(
    r"""'[^'\n]*' | "[^"\n]*"                       # quoted values
      | 0x[0-9a-fA-F]+                              # addresses
      | \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b
      | \b(?=\w*\d)\w+\b                            # whatever has a digit in it: numbers, ids, times
    """,
    re.VERBOSE,
)
LENGTH = 12


def kind_of(error: str) -> str:
    """What an error is, without its text, which may quote the message: all that logs and viewers get.

    >>> kind_of("Reject: ann@example.com has no account")
    'Reject'
    """
    return error.partition(":")[0]


def fingerprint(error: str) -> str:
    """The name of the kind of error that a text tells about.

    >>> fingerprint("Reject: order 17 is 300 EUR") == fingerprint("Reject: order 9 is 12 EUR")
    True
    >>> fingerprint("Reject: order 17 is 300 EUR") == fingerprint("ValueError: order 17 is 300 EUR")
    False
    """
    kind = _VARYING.sub("#", error.partition("\n")[0])
    return hashlib.sha256(kind.encode(errors="backslashreplace")).hexdigest()[:LENGTH]
