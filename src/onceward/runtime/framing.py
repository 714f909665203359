"""Where a request ends: a request that two servers could read differently is refused before any of it is read.

Behind a proxy a connection carries the requests of many senders. If the proxy and this server disagree about where one
of them ends, its sender decides what the next one is. So a head that names its length twice, in two ways or as a list,
that folds lines or ends them in another way than with CR LF, is an error; the connection is closed with the answer.
"""

from __future__ import annotations

import re

_HEAD = re.compile(rb".*?\n\r?\n", re.DOTALL)
_DIGITS = re.compile(rb"[0-9]+")


def problem(received: bytes) -> str | None:
    """Return why the end of the first request is not certain; None where it is, or its head is not complete."""
    head = _HEAD.match(received)
    return ambiguity(head.group()) if head else None


def ambiguity(head: bytes) -> str | None:
    r"""Return why the end of a request is not certain; None where it is.

    >>> ambiguity(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
    >>> ambiguity(b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n")
    'content-length is not one number'
    """
    lines = head.split(b"\n")[:-1]
    if not all(line.endswith(b"\r") for line in lines) or any(b"\r" in line[:-1] for line in lines):
        return "a line does not end with CR LF"
    request, *fields = (line[:-1] for line in lines[:-1])
    if any(field.startswith((b" ", b"\t")) for field in fields):
        return "a header goes on in a second line"
    named = [(name.strip().lower(), value.strip()) for name, _, value in (field.partition(b":") for field in fields)]
    lengths = [value for name, value in named if name == b"content-length"]
    codings = [value for name, value in named if name == b"transfer-encoding"]
    if lengths and codings:
        return "there are content-length and transfer-encoding"
    if lengths and (len(lengths) > 1 or not _DIGITS.fullmatch(lengths[0])):
        return "content-length is not one number"
    if codings and ([value.lower() for value in codings] != [b"chunked"] or not request.endswith(b"HTTP/1.1")):
        return "transfer-encoding is not chunked, once, in HTTP/1.1"
    return None
