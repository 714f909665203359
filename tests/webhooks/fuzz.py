"""Requests that nobody should take, generated: a few in every run, many by `make fuzz`.

A stranger knows no secret and sends anything. A forger has seen genuine requests, and changes them.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from onceward.webhooks.request import NotAuthentic
from tests.webhooks.conftest import Caller, endpoints, parse
from tests.webhooks.senders import NOW, Sender, Signed, event

JSON = "content-type: application/json"
_HEADERS = (
    *("content-type", "content-length", "transfer-encoding", "content-encoding", "expect", "connection"),
    *("stripe-signature", "x-hub-signature-256", "x-slack-signature", "x-slack-request-timestamp"),
    *("x-shopify-hmac-sha256", "webhook-id", "webhook-timestamp", "webhook-signature", "x-signature"),
    *("x-id", "x-time", "paypal-transmission-id", "paypal-transmission-time", "paypal-cert-url"),
    *("paypal-auth-algo", "paypal-transmission-sig", "x-github-event", "x-github-delivery"),
)
_VALUES = st.one_of(
    st.sampled_from(["application/json", "0", "2", "5", "chunked", "100-continue", "close", "gzip"]),
    st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
)
_LATIN = [chr(number) for number in range(256)]


def head(*lines: str, method: str = "POST", path: str = "/stripe", version: str = "1.1") -> bytes:
    """The head of a request."""
    host = ["host: x"] if not any(line.lower().startswith("host:") for line in lines) else []
    return "\r\n".join([f"{method} {path} HTTP/{version}", *host, *lines, "", ""]).encode("latin-1")


def strangers_requests() -> st.SearchStrategy[bytes]:
    """What a stranger may send to a path, known or not: any of the headers that mean something, with anything in it."""

    def raw(path: str, lines: list[tuple[str, str]], body: bytes) -> bytes:
        return head(JSON, *(f"{name}: {value}" for name, value in lines), path=path) + body

    lines = st.lists(st.tuples(st.sampled_from(_HEADERS), _VALUES), max_size=8)
    return st.builds(raw, st.sampled_from([*endpoints(), "/", "/x"]), lines, st.binary(max_size=200))


def refuse_strangers(caller: Caller, number: int, drawn: int) -> Counter[str]:
    """Send so many requests to a server; answers how often it gave each answer. Raises at one that is no refusal."""
    answers: Counter[str] = Counter()

    @seed(drawn)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(raw=strangers_requests())
    def send(raw: bytes) -> None:
        answer = caller.send(raw, finish=True)
        status = parse(answer).status if answer else 0
        assert status == 0 or 400 <= status < 500, (raw, answer[:300])
        answers[str(status or "none, and the connection closed")] += 1

    send()
    return answers


def refuse_forgers(sender: Sender, number: int, drawn: int) -> int:
    """Show so many forgeries to a verifier; answers how many it took: none."""
    chance, verifier = random.Random(f"{drawn} {sender.name}"), sender.verifier(sender.secrets)
    genuine = [sender.sign(event(f"evt_{count}", amount=count), f"evt_{count}") for count in range(10)]
    assert not any(_is_refused(verifier, one) for one in genuine)
    accepted = 0
    for _ in range(number):
        forged = _forged(sender, chance, genuine)
        accepted += not _is_refused(verifier, forged)
    return accepted


def _forged(sender: Sender, chance: random.Random, genuine: list[Signed]) -> Signed:
    """A genuine request with one thing wrong: its body, its signature, or the two are not of one request."""
    one, other = chance.sample(genuine, 2)
    right = one.headers[sender.signature]
    way = chance.randrange(5)
    if way == 0:
        return one.changed(body=other.body)
    if way == 1:
        place, bit = chance.randrange(len(one.body)), 1 << chance.randrange(8)
        return one.changed(body=one.body[:place] + bytes([one.body[place] ^ bit]) + one.body[place + 1 :])
    if way == 2:
        cut, inserted = chance.randrange(1, len(one.body)), chance.randbytes(chance.randrange(3, 9))
        return one.changed(body=one.body[:cut] + inserted + one.body[cut + chance.randrange(3) :])  # never as long
    place = chance.randrange(len(right))
    if way == 3:
        wrong = chance.choice([letter for letter in _LATIN if letter != right[place]])
        return one.with_headers({sender.signature: right[:place] + wrong + right[place + 1 :]})
    return one.with_headers({sender.signature: right[:place]})


def _is_refused(verifier: Any, signed: Signed) -> bool:
    try:
        verifier.verify(signed.request, NOW)
    except NotAuthentic:
        return True
    return False
