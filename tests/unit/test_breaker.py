"""A circuit pauses a handler after failures in a row, and lets it try again."""

from __future__ import annotations

import errno
import socket
import urllib.error
from datetime import timedelta

import aiohttp
import botocore.exceptions
import httpx2
import pytest
import redis
import requests
import urllib3

from onceward.domain.breaker import CONNECTIONS, Breaker, Circuit, is_connection_error
from onceward.errors import ConfigurationError
from tests.unit.builders import Clock


def pausing(one: Breaker) -> bool:
    """As `is_open`, asked anew each time."""
    return one.is_open


@pytest.mark.parametrize("changes", [{"failures": 0}, {"pause": timedelta(0)}, {"pause": timedelta(seconds=-1)}])
def test_a_circuit_that_makes_no_sense_is_refused(changes: dict[str, int]) -> None:
    """At least one failure, and some pause."""
    with pytest.raises(ConfigurationError, match="Circuit"):
        Circuit(**changes)  # type: ignore[arg-type] # each kind in turn


def test_it_opens_after_failures_in_a_row() -> None:
    """Not before, and a success starts the count anew."""
    time = Clock()
    one = Breaker(Circuit(3, timedelta(seconds=10)), clock=time)
    for _ in range(2):
        one.failed(ConnectionError())
    one.succeeded()
    for _ in range(2):
        one.failed(ConnectionError())
        assert not pausing(one)
    one.failed(ConnectionError())
    assert pausing(one)


def test_it_closes_after_its_pause_and_opens_again_at_the_next_failure() -> None:
    """One try is enough to know that the other side is still broken; one success, that it is not."""
    time = Clock()
    one = Breaker(Circuit(2, timedelta(seconds=10)), clock=time)
    one.failed(ConnectionError())
    one.failed(ConnectionError())
    time.now += 9.9
    assert pausing(one)
    time.now += 0.1
    assert not pausing(one)
    one.failed(ConnectionError())
    assert pausing(one)
    time.now += 10
    one.succeeded()
    one.failed(ConnectionError())
    assert not pausing(one)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """As after `raise error from cause`."""
    error.__cause__ = cause
    return error


class TransportError(Exception):
    """As httpx has it, which is not among the packages of the tests."""

    __module__ = "httpx"


class ReadError(TransportError):
    """One of those derived from it."""


ONE, OTHER = ValueError(), KeyError()
RING = caused(ONE, caused(OTHER, ONE))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (TimeoutError(), True),
        (socket.gaierror(-2, "Name or service not known"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (urllib.error.URLError(ConnectionRefusedError()), True),
        (requests.ConnectionError(), True),
        (requests.ReadTimeout(), True),
        (urllib3.exceptions.ReadTimeoutError(None, "x", "y"), True),  # type: ignore[arg-type] # no pool
        (aiohttp.ServerDisconnectedError(), True),
        (redis.ConnectionError(), True),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), True),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), True),
        (ReadError(), True),
        (httpx2.ConnectError("x"), True),
        (httpx2.InvalidURL("x"), False),
        (caused(RuntimeError("the warehouse is away"), ConnectionRefusedError()), True),
        (ValueError("x"), False),
        (FileNotFoundError(errno.ENOENT, "x"), False),
        (PermissionError(errno.EACCES, "x"), False),
        (requests.HTTPError("500"), False),
        (urllib.error.HTTPError("http://x", 404, "not found", None, None), False),  # type: ignore[arg-type]
        (RING, False),
    ],
)
def test_what_is_a_connection_error(error: BaseException, *, expected: bool) -> None:
    """D46: by class, by number, by the usual clients' own classes, or as the cause of another error."""
    assert is_connection_error(error) == expected


def test_a_choice_that_fails_counts() -> None:
    """It must not end the worker thread that asks."""

    def choosy(error: BaseException) -> bool:
        raise RuntimeError(str(error))

    one = Breaker(Circuit(1, counts=choosy), clock=Clock())
    one.failed(ValueError())
    assert pausing(one)


def test_the_default_counts_connection_errors_alone() -> None:
    """A message that is wrong by itself stops no other; a circuit that is asked for counts all."""
    quiet, strict = Breaker(CONNECTIONS, clock=Clock()), Breaker(Circuit(), clock=Clock())
    for _ in range(5):
        quiet.failed(ValueError())
        strict.failed(ValueError())
    assert (pausing(quiet), pausing(strict)) == (False, True)
    for _ in range(5):
        quiet.failed(ConnectionRefusedError())
    assert pausing(quiet)
