"""Addresses of brokers: read against their form, and never shown with a password."""

from __future__ import annotations

import pytest

from onceward import ConfigurationError
from onceward.domain.address import Address

FORM = "redis://host:6379/0?stream=NAME&group=onceward&filter=&wait=30"


def test_what_is_not_given_has_the_default_of_the_form() -> None:
    address = Address.of("redis://me:canary@db:1/0?stream=a%2F+b%20%23&wait=2.5", FORM)
    assert dict(address.options) == {"stream": "a/+b #", "group": "onceward", "filter": "", "wait": "2.5"}
    assert address.server == "redis://me:canary@db:1/0"
    assert address.shown == "redis://db:1/0"
    assert "canary" not in repr(address)
    assert address.seconds("wait") == 2.5


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "stream is missing"),
        ("stream=", "stream is missing"),
        ("stream=x&streem=y&a=b", "a, streem is not known"),
        ("stream=x#y", "written %23"),
        ("stream=x/#", "written %23"),
    ],
)
def test_an_address_that_does_not_follow_the_form_is_refused_with_it(query: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        Address.of(f"redis://:canary@localhost/0?{query}", FORM)
    assert "stream=NAME&group=onceward" in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost:0", "localhost:x", "localhost:99999", "me:canary@localhost:port"])
def test_a_port_that_cannot_be_read_is_refused_before_anything_runs(host: str) -> None:
    with pytest.raises(ConfigurationError, match="port cannot be read") as caught:
        Address.of(f"redis://{host}/0?stream=x", FORM)
    assert "canary" not in str(caught.value)
    assert Address.of("redis://a:1,b:2/0?stream=x", FORM).shown == "redis://a:1,b:2/0"


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "y", "", "100000"])
def test_numbers_have_bounds(text: str) -> None:
    address = Address.of(f"redis://localhost?stream=x&wait={text}", FORM)
    with pytest.raises(ConfigurationError, match=r"wait=.* must be 1 to 86400 seconds"):
        address.seconds("wait")
    with pytest.raises(ConfigurationError, match=r"wait=.* must be 1 to 500"):
        address.count("wait", highest=500)


def test_a_count_is_whole() -> None:
    assert Address.of("redis://localhost?stream=x&wait=7", FORM).count("wait", highest=500) == 7
    with pytest.raises(ConfigurationError, match="whole number"):
        Address.of("redis://localhost?stream=x&wait=7.5", FORM).count("wait", highest=500)
