"""Who acts, where it is not said."""

from __future__ import annotations

import os


def user() -> str:
    """Who acts, where it is not said."""
    import getpass  # noqa: PLC0415 - only for people

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"
