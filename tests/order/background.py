"""A call in the background of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def meanwhile(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Make a call in a thread; when the block has ended, so has the call, and its answer is in the list."""
    answers: list[Any] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield answers
    finally:
        thread.join()
    if problems:
        raise problems[0]
