"""Requests go only to addresses that were checked, so that nobody reaches through us what is not theirs (3.4)."""

from __future__ import annotations

import base64
import ipaddress
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from onceward import ConfigurationError, Message, Reject
from onceward.sinks.http import HttpSink, checked_address
from tests.outbox.receiver import Receiver

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()

# What a literal may look like; how it is read is the system's business, what it leads to is ours.
LITERALS = [
    # this machine
    "127.0.0.1",
    "127.0.0.2",
    "127.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "0",
    "0x0",
    "0.0.0.1",
    "localhost",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0.01",
    "127.0x1",
    "::1",
    "0:0:0:0:0:0:0:1",
    "0000::0001",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "0:0:0:0:0:ffff:127.0.0.1",
    "::127.0.0.1",
    # private networks
    "10.0.0.1",
    "10.255.255.255",
    "167772161",
    "0x0a000001",
    "012.0.0.1",
    "172.16.0.1",
    "172.31.255.254",
    "2886729729",
    "192.168.0.1",
    "192.168.1.254",
    "0xc0a80001",
    "3232235521",
    "100.64.0.1",
    "100.127.255.254",
    "::ffff:10.0.0.1",
    "::ffff:192.168.1.1",
    "fc00::1",
    "fd00::1",
    "fd12:3456:789a::1",
    "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    "fec0::1",
    # the link, and the metadata services on it
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "febf::1",
    "fd00:ec2::254",
    "100.100.100.200",
    # IPv4 inside IPv6: gateways of a network translate these to the address inside
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:a9fe:a9fe::",
    "2002:c0a8:101::1",
    "2001:0:7f00:1::",
    "2001::a9fe:a9fe",
    # to many, to all, to nobody
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    "4294967295",
    "240.0.0.1",
    "ff02::1",
    "ff05::2",
    "ff0e::1",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.7",
    "2001:db8::1",
    "100::1",
]

PUBLIC = ["93.184.215.14", "1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:80e::200e", "::ffff:8.8.8.8"]

Answers = dict[str, list[str]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[str]]:
    """Makes names resolve as the test says; answers the list of the names that were asked for."""
    real = socket.getaddrinfo
    asked: list[str] = []

    def use(answers: Answers) -> list[str]:
        turns = {name: iter(found) for name, found in answers.items()}

        def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name not in turns:
                return real(host, port, *args, **kwargs)
            asked.append(name)
            return [_entry(address, port) for address in next(turns[name]).split()]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        return asked

    return use


def _entry(address: str, port: int) -> tuple[Any, ...]:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


def message() -> Message:
    """Something to publish."""
    return Message(
        id="m1",
        source="shop",
        type="shipped",
        version=1,
        data=None,
        body=b"{}",
        headers={},
        key=None,
        seq=1,
        attempt=1,
        received_at=datetime.now(UTC),
        consumer="relay",
    )


@pytest.mark.parametrize("host", LITERALS)
def test_an_address_that_is_not_public_is_refused(host: str) -> None:
    """Whatever way it is written: refused, or not an address at all; never let through."""
    with pytest.raises((Reject, ConnectionError)):
        checked_address(host, 443, allow_private=False)


@pytest.mark.parametrize("address", LITERALS)
def test_a_name_that_leads_to_such_an_address_is_refused(
    address: str, resolver: Callable[[Answers], list[str]]
) -> None:
    """DNS says what its owner wants."""
    try:
        plain = str(ipaddress.ip_address(address))
    except ValueError:
        plain = "127.0.0.1"  # a spelling that only literals can have
    resolver({"hooks.example": [plain]})
    with pytest.raises(Reject, match="not a public address"):
        checked_address("hooks.example", 443, allow_private=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_let_through(address: str, resolver: Callable[[Answers], list[str]]) -> None:
    """And it is this very address that is connected to."""
    resolver({"hooks.example": [address]})
    found = checked_address("hooks.example", 443, allow_private=False)
    assert ipaddress.ip_address(found) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "answer", ["93.184.215.14 10.0.0.1", "10.0.0.1 93.184.215.14", "2606:4700::1 ::1", "93.184.215.14 fe80::1"]
)
def test_one_bad_address_among_good_ones_is_enough(answer: str, resolver: Callable[[Answers], list[str]]) -> None:
    """Whichever one a client would have tried."""
    resolver({"hooks.example": [answer]})
    with pytest.raises(Reject, match="not a public address"):
        checked_address("hooks.example", 443, allow_private=False)


def test_an_address_with_a_zone_is_read(resolver: Callable[[Answers], list[str]]) -> None:
    """`fe80::1%eth0` is a link-local address, not an error."""
    resolver({"hooks.example": ["fe80::1%eth0"]})
    with pytest.raises(Reject):
        checked_address("hooks.example", 443, allow_private=False)


@pytest.mark.parametrize("host", LITERALS)
def test_a_sink_for_such_an_address_never_connects(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the URL, as a configuration would have it."""
    connected: list[Any] = []

    def connect(*args: Any, **_: Any) -> None:
        connected.append(args)
        raise AssertionError("it connected")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket.socket, "connect", connect)
    literal = f"[{host}]" if ":" in host else host
    with pytest.raises((Reject, ConnectionError, ConfigurationError)):
        HttpSink(f"https://{literal}/hooks", secrets=[SECRET]).publish(message())
    assert connected == []


def test_a_name_is_resolved_once_and_the_checked_address_is_used(resolver: Callable[[Answers], list[str]]) -> None:
    """DNS rebinding: a second answer would lead elsewhere, and nobody asks for it."""
    with Receiver() as receiver:
        asked = resolver({"hooks.example": ["127.0.0.1", "127.0.0.66"]})
        sink = HttpSink(receiver.url("hooks.example"), secrets=[SECRET], allow_private=True)
        sink.publish(message())
        sink.close()
        assert asked == ["hooks.example"]
        (request,) = receiver.requests
        assert request.headers["host"] == f"hooks.example:{receiver.port}"


def test_each_publication_is_checked_anew(resolver: Callable[[Answers], list[str]]) -> None:
    """A name that was public yesterday is looked at today; no connection of yesterday is used for it."""
    resolver({"hooks.example": ["10.0.0.1", "192.168.0.1"]})
    sink = HttpSink("https://hooks.example/", secrets=[SECRET])
    for _ in range(2):
        with pytest.raises(Reject, match="not a public address"):
            sink.publish(message())
    sink.close()


def test_a_name_that_cannot_be_resolved_may_be_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retried, not dead: resolvers have bad days."""

    def away(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    with pytest.raises(ConnectionError, match="cannot be resolved"):
        checked_address("hooks.example", 443, allow_private=False)


def test_private_addresses_are_for_receivers_of_one_s_own() -> None:
    """`allow_private=True` says so."""
    assert checked_address("127.0.0.1", 80, allow_private=True) == "127.0.0.1"
    assert checked_address("::1", 80, allow_private=True) == "::1"
