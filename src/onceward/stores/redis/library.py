"""The library of functions that a server runs for us: all of `lua/`, under a name that is a digest of it.

So several versions of onceward share a server, each with its own, and a library of a name is never another one.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@cache
def source() -> str:
    """The library, as the server loads it."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.lua")))
    name = f"onceward_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{text}"


@cache
def name() -> str:
    """What it is called, and its door for changes; that for questions ends in `_read`."""
    return source().partition("=")[2].partition("\n")[0]
