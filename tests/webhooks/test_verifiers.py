"""Each way of signing: official vectors, the senders' own libraries, and what must be refused (R39; W01 to W09)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks
import stripe
from hypothesis import given, settings
from hypothesis import strategies as st
from slack_sdk.signature import SignatureVerifier

from onceward import ConfigurationError
from onceward.domain.standard_webhooks import sign
from onceward.webhooks import GitHub, Secret, Shopify, Slack, StandardWebhooks, Stripe
from onceward.webhooks.keyring import Keyring
from onceward.webhooks.request import NotAuthentic, Refusal
from tests.webhooks.senders import (
    ED25519,
    NOW,
    OTHER,
    PUBLIC,
    SECRET,
    SENDERS,
    SHARED,
    Sender,
    Signed,
    event,
    generic,
    sign_github,
    sign_shopify,
    sign_slack,
    sign_standard,
    sign_stripe,
)

each_sender = pytest.mark.parametrize("sender", SENDERS, ids=lambda sender: sender.name)
timed = pytest.mark.parametrize(
    "sender",
    [sender for sender in SENDERS if sender.name not in ("github", "shopify", "paypal")],
    ids=lambda sender: sender.name,
)


def refused(verifier: Any, signed: Signed, now: float = NOW) -> bool:
    try:
        verifier.verify(signed.request, now)
    except NotAuthentic:
        return True
    return False


# Official vectors


def test_githubs_own_vector() -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": signature, "x-github-delivery": "d", "x-github-event": "ping"}
    found = GitHub("It's a Secret to Everybody").verify(Signed(b"Hello, World!", headers).request, NOW)
    assert (found.id, found.type, found.unsigned) == ("d", "ping", ("id", "type"))


def test_slacks_own_vector() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    verifier = Slack("8f742231b10e8888abcd99yyyzzz85a5")
    assert refused(verifier, Signed(body + b" ", headers), 1531420618)
    found = verifier.verify(Signed(body, headers).request, 1531420618)  # authentic, and no event
    assert (found.id, found.type) == (None, None)


def test_the_standards_own_vector() -> None:
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    verifier = StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", type=lambda _: "test")
    found = verifier.verify(Signed(b'{"test": 2432232314}', headers).request, 1614265330)
    assert (found.id, found.type, found.unsigned) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "test", ())


def test_the_ed25519_vector_of_rfc_8032() -> None:
    """The third test of RFC 8032 gives the key; a message made with the second half of the standard's scheme."""
    public = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
    signature = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    from onceward.webhooks.standard import _ed25519  # noqa: PLC0415 - the vector's message has not our form

    assert _ed25519(public, signature, bytes.fromhex("af82"))
    assert not _ed25519(public, signature, bytes.fromhex("af83"))


# What the senders' libraries sign is accepted, and what we accept their libraries accept


@each_sender
def test_what_the_sender_signs_is_accepted(sender: Sender) -> None:
    body = event("evt_1", text="grüße \u2028 😀")
    found = sender.verifier(sender.secrets).verify(sender.sign(body, "evt_1").request, NOW)
    assert (found.id, found.type) == ("evt_1", "order.paid")
    assert found.unsigned == {"github": ("id", "type"), "shopify": ("id", "type"), "paypal": ("body",)}.get(
        sender.name, ()
    )


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=60).map(lambda raw: json.dumps({"id": "e", "type": "t", "x": raw.hex()}).encode()),
    age=st.integers(-400, 400),
    header=st.text(string.printable, max_size=40),
    genuine=st.booleans(),
)
def test_we_accept_no_more_than_the_senders_libraries(body: bytes, age: int, header: str, *, genuine: bool) -> None:
    """Whatever we accept, Stripe's, Slack's and the standard's own libraries accept too."""
    moment = datetime.now(UTC).timestamp()
    stripes = sign_stripe(body, "e", now=moment - age)
    if not genuine:
        stripes = stripes.changed(stripe_signature=header)
    try:
        Stripe(SECRET).verify(stripes.request, moment)
    except Refusal:
        pass
    else:
        value = stripes.headers["stripe-signature"]
        assert stripe.WebhookSignature.verify_header(body.decode(), value, SECRET, 300 + 5)
    slacks = sign_slack(body, "e", now=moment - age)
    if not genuine:
        slacks = slacks.changed(x_slack_signature=header)
    if not refused_or_unclear(Slack(SECRET), slacks, moment):
        assert SignatureVerifier(SECRET).is_valid_request(body, slacks.headers)
    standards = sign_standard(body, "e", now=moment - age)
    if not genuine:
        standards = standards.changed(webhook_signature=header)
    if not refused_or_unclear(StandardWebhooks(SHARED), standards, moment) and abs(age) < 295:
        assert standardwebhooks.Webhook(SHARED).verify(body, dict(standards.headers))


def refused_or_unclear(verifier: Any, signed: Signed, now: float) -> bool:
    try:
        verifier.verify(signed.request, now)
    except Refusal:
        return True
    return False


def test_what_our_own_sink_signs_is_accepted() -> None:
    body, stamp = b"[1,2]", str(NOW)
    headers = {
        "webhook-id": "m1",
        "webhook-timestamp": stamp,
        "webhook-signature": sign(bytes(range(32)), "m1", stamp, body),
        "webhook-type": "order.shipped",
    }
    found = StandardWebhooks(SHARED, type="header:webhook-type").verify(Signed(body, headers).request, NOW)
    assert (found.id, found.type, found.unsigned) == ("m1", "order.shipped", ("type",))


# What must be refused


@each_sender
def test_a_changed_body_another_secret_or_no_signature_is_refused(sender: Sender) -> None:
    verifier, signed = sender.verifier(sender.secrets), sender.sign(event("evt_1"), "evt_1")
    assert refused(verifier, signed.changed(body=signed.body + b" "))
    assert refused(verifier, signed.changed(body=signed.body.replace(b"evt_1", b"evt_2")))
    assert refused(verifier, signed.changed(body=b""))
    assert refused(verifier, sender.sign(signed.body, "evt_1", secret=sender.other))
    for name in signed.headers:
        if name not in ("x-github-delivery", "x-github-event", "x-shopify-webhook-id", "x-shopify-topic"):
            assert refused(verifier, signed.with_headers({name: None})), name
            assert refused(verifier, signed.with_headers({name: ""})), name
            assert refused(verifier, signed.with_headers({name: "grüße"})), name
            assert refused(verifier, signed.with_headers({name: signed.headers[name] * 400})), name


@each_sender
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_other_header_than_the_right_one_is_accepted(sender: Sender, data: st.DataObject) -> None:
    """Random text, cut, doubled and edited signatures: never accepted, and never another exception."""
    verifier, signed = sender.verifier(sender.secrets), sender.sign(event("evt_1"), "evt_1")
    right = signed.headers[sender.signature]
    place = data.draw(st.integers(0, len(right)))
    cut = data.draw(st.integers(0, 3))
    inserted = data.draw(st.text(st.characters(max_codepoint=255), max_size=4))
    wrong = right[:place] + inserted + right[place + cut :]
    if wrong == right:
        wrong = data.draw(st.text(st.characters(max_codepoint=255), max_size=90))
    # Adding a signature of a scheme that is not known leaves the right one right, as the senders ask.
    accepted = not refused(verifier, signed.with_headers({sender.signature: wrong}))
    assert not accepted or (sender.name in ("stripe", "standard", "ed25519") and right.split("=", 1)[1][:20] in wrong)


@timed
def test_the_time_is_checked_both_ways(sender: Sender) -> None:
    verifier = sender.verifier(sender.secrets)
    for age, accepted in ((0, True), (299, True), (-299, True), (301, False), (-301, False), (10**6, False)):
        signed = sender.sign(event("evt_1"), "evt_1", now=NOW - age)
        assert refused(verifier, signed) is not accepted, age


@timed
def test_a_time_that_is_not_signed_is_not_believed(sender: Sender) -> None:
    """Old signatures with a new time: the time is part of what is signed."""
    signed = sender.sign(event("evt_1"), "evt_1", now=NOW - 900)
    fresh = {name: value.replace(str(NOW - 900), str(NOW)) for name, value in signed.headers.items()}
    assert fresh != signed.headers
    assert refused(sender.verifier(sender.secrets), Signed(signed.body, fresh))


@pytest.mark.parametrize(
    "text",
    [
        "1_800_000_000",
        "١٨٠٠٠٠٠٠٠٠",
        "+1800000000",
        "-1",
        "1800000000.0",
        "nan",
        "inf",
        "1e9",
        "0x6b49d200",
        "",
        "1800000000 ",
        "18000000000000",
    ],
)
def test_only_plain_digits_are_a_time(text: str) -> None:
    signed = sign_standard(event("e"), "e")
    assert refused(StandardWebhooks(SHARED), signed.changed(webhook_timestamp=text.encode().decode("latin-1")))
    slack = sign_slack(event("e"), "e")
    assert refused(Slack(SECRET), slack.changed(x_slack_request_timestamp=text.encode().decode("latin-1")))
    digest = hmac.new(SECRET.encode(), f"{text}.".encode() + b"{}", hashlib.sha256).hexdigest()
    header = f"t={text},v1={digest}".encode().decode("latin-1")
    assert refused(Stripe(SECRET), Signed(b"{}", {"stripe-signature": header}))


def test_a_tolerance_cannot_be_switched_off() -> None:
    for verifier in (Stripe, Slack):
        with pytest.raises(ConfigurationError, match="above zero"):
            verifier(SECRET, tolerance=timedelta(0))
    with pytest.raises(ConfigurationError, match="above zero"):
        StandardWebhooks(SHARED, tolerance=timedelta(seconds=-1))


def test_too_many_signatures_are_refused() -> None:
    stripes = sign_stripe(event("e"), "e")
    stamp, right = stripes.headers["stripe-signature"].split(",")
    wrong = "v1=" + "0" * 64
    assert not refused(Stripe(SECRET), stripes.changed(stripe_signature=",".join([stamp, *[wrong] * 15, right])))
    assert refused(Stripe(SECRET), stripes.changed(stripe_signature=",".join([stamp, *[wrong] * 16, right])))
    assert refused(Stripe(SECRET), stripes.changed(stripe_signature=f"{stamp},{stamp},{right}"))
    standards = sign_standard(event("e"), "e")
    good, bad = standards.headers["webhook-signature"], "v1," + base64.b64encode(bytes(32)).decode()
    assert not refused(StandardWebhooks(SHARED), standards.changed(webhook_signature=" ".join([*[bad] * 15, good])))
    assert refused(StandardWebhooks(SHARED), standards.changed(webhook_signature=" ".join([*[bad] * 16, good])))


def test_schemes_that_are_not_known_are_left_alone_and_old_ones_refused() -> None:
    stripes = sign_stripe(event("e"), "e")
    header = stripes.headers["stripe-signature"]
    assert not refused(Stripe(SECRET), stripes.changed(stripe_signature=f"{header},v0=abc,v2=def"))
    assert refused(Stripe(SECRET), stripes.changed(stripe_signature=header.replace("v1", "v0")))
    github = sign_github(event("e"), "e")
    sha1 = "sha1=" + hmac.new(SECRET.encode(), github.body, hashlib.sha1).hexdigest()
    assert refused(GitHub(SECRET), github.changed(x_hub_signature_256=sha1))
    assert refused(GitHub(SECRET), github.changed(x_hub_signature_256=None, x_hub_signature=sha1))


def test_a_repeated_header_is_refused() -> None:
    signed = sign_stripe(event("e"), "e")
    pair = (b"stripe-signature", signed.headers["stripe-signature"].encode())
    from onceward.webhooks.request import Headers, Request  # noqa: PLC0415

    assert Stripe(SECRET).verify(Request(Headers([pair]), signed.body), NOW).id
    with pytest.raises(NotAuthentic):
        Stripe(SECRET).verify(Request(Headers([pair, pair]), signed.body), NOW)


def test_other_spellings_of_a_signature_are_refused() -> None:
    """Upper case, white space, padding, URL-safe letters, unused bits: one signature, one text."""
    shopify = sign_shopify(event("e"), "e")
    right = shopify.headers["x-shopify-hmac-sha256"]
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    loose = right[:-2] + alphabet[alphabet.index(right[-2]) + 1] + "="
    assert base64.b64decode(loose) == base64.b64decode(right)  # what makes it a trap
    for wrong in (loose, right.rstrip("="), right + "=", right[:10] + " " + right[10:], right + right, f"\t{right}"):
        assert refused(Shopify(SECRET), shopify.changed(x_shopify_hmac_sha256=wrong)), wrong
    github = sign_github(event("e"), "e")
    value = github.headers["x-hub-signature-256"]
    for wrong in (
        value.upper(),
        value.replace("sha256=", "SHA256="),
        f"{value} ",
        value + "00",
        value.replace("=", "=0x"),
    ):
        assert refused(GitHub(SECRET), github.changed(x_hub_signature_256=wrong)), wrong


# Secrets


@pytest.mark.parametrize("nothing", ["", " ", "\t\n", None, [], [""], [SECRET, ""], [SECRET, "  "], [None], Secret("")])
@pytest.mark.parametrize("verifier", [Stripe, GitHub, Slack, Shopify, generic, StandardWebhooks])
def test_without_a_secret_nothing_starts(verifier: Any, nothing: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        verifier(nothing)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("bad", [f"{SECRET}\n", f" {SECRET}"])
def test_a_secret_with_its_line_end_is_a_mistake(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="white space"):
        Stripe(bad)


def test_standard_secrets_are_checked() -> None:
    for bad in (
        "whsec_!!!",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whpk_abc",
        "whpk_" + SHARED[6:-4],
        "hunter2",
    ):
        with pytest.raises(ConfigurationError):
            StandardWebhooks(bad)


def test_secrets_are_replaced_without_a_pause() -> None:
    """Old and new are accepted, the old one until its end; the one that matched is known by name, never by value."""
    end = datetime.fromtimestamp(4_000_000_000, UTC)
    verifier = Stripe([Secret(OTHER, "2027"), Secret(SECRET, "2026", until=end)])
    new, old = sign_stripe(event("e"), "e", secret=OTHER), sign_stripe(event("e"), "e", secret=SECRET)
    assert verifier.verify(new.request, NOW).signer == "2027"
    assert verifier.verify(old.request, NOW).signer == "2026"
    late = 4_000_000_000
    assert refused(verifier, sign_stripe(event("e"), "e", now=late, secret=SECRET), late)
    assert not refused(verifier, sign_stripe(event("e"), "e", now=late, secret=OTHER), late)
    ended = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="ended"):
        Stripe(Secret(SECRET, until=ended))
    with pytest.raises(ConfigurationError, match="zone"):
        Stripe(Secret(SECRET, until=datetime(2020, 1, 1)))  # noqa: DTZ001 - the mistake itself


def test_both_kinds_of_standard_secret_at_once() -> None:
    verifier = StandardWebhooks([Secret(SHARED, "shared"), Secret(PUBLIC, "public")])
    shared = sign_standard(event("e"), "e")
    public = "v1a," + base64.b64encode(ED25519.sign(f"e.{NOW}.".encode() + shared.body)).decode()
    assert verifier.verify(shared.request, NOW).signer == "shared"
    assert verifier.verify(shared.changed(webhook_signature=public).request, NOW).signer == "public"
    wrong = "v1," + base64.b64encode(bytes(32)).decode()
    assert verifier.verify(shared.changed(webhook_signature=f"{wrong} {public}").request, NOW).signer == "public"
    # The bytes of a public key are known to all: they must never serve as a shared secret.
    forged = sign(base64.b64decode(PUBLIC[5:]), "e", str(NOW), shared.body)
    assert refused(verifier, shared.changed(webhook_signature=forged))
    assert refused(StandardWebhooks(PUBLIC), shared.changed(webhook_signature=forged))


def test_secrets_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = Secret(SECRET, "mine")
    shown = f"{secret!r} {Keyring('s', [secret])!r} {Stripe(secret)!r} {generic(secret)!r}"
    with pytest.raises(NotAuthentic) as caught:
        Stripe(secret).verify(sign_stripe(event("e"), "e", secret=OTHER).request, NOW)
    assert SECRET not in shown + str(caught.value) + caplog.text
    assert caught.value.text == "the signature is missing, wrong or too old"


# Ids and types


def test_ids_from_the_body_alone_are_asked_for_by_name() -> None:
    """A content-derived id is a choice: then a new header id makes no new event."""
    for verifier, sign_ in ((GitHub(SECRET, by_body=True), sign_github), (Shopify(SECRET, by_body=True), sign_shopify)):
        first = verifier.verify(sign_(b"{}", "a").request, NOW)
        second = verifier.verify(sign_(b"{}", "b").request, NOW)
        assert first.id == second.id == "sha256:" + hashlib.sha256(b"{}").hexdigest()
        assert "id" not in first.unsigned


def test_several_fields_make_one_id_and_lengths_keep_them_apart() -> None:
    verifier = generic(id=["account", "number"])

    def found(account: Any, number: Any) -> str | None:
        body = json.dumps({"type": "t", "account": account, "number": number}).encode()
        return verifier.verify(_signed(body).request, NOW).id

    def _signed(body: bytes) -> Signed:
        from tests.webhooks.senders import sign_generic  # noqa: PLC0415

        return sign_generic(body, "x")

    assert found("a", "bc") != found("ab", "c")
    assert found("a", 1) == found("a", "1") != found("a", 2)
    assert found("a", None) is None


UNSIGNED = {
    "stripe": (),
    "github": ("id", "type"),
    "slack": (),
    "shopify": ("id", "type"),
    "standard": (),
    "ed25519": (),
    "generic": (),
    "paypal": ("body",),
}


@each_sender
def test_each_sender_says_what_it_does_not_sign(sender: Sender) -> None:
    signed = sender.sign(event("evt_1"), "evt_1")
    assert sender.verifier(sender.secrets).verify(signed.request, NOW).unsigned == UNSIGNED[sender.name]


def test_what_the_signature_does_not_cover_is_said() -> None:
    assert generic()._unsigned == ()
    assert generic(signed="{timestamp}:{body}")._unsigned == ("id",)
    assert generic(signed="{timestamp}:{body}", id="id", type="header:x-type")._unsigned == ("type",)
    assert generic(id="body")._unsigned == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"digest": "sha1"}, "weaker ones are refused"),
        ({"digest": "md5"}, "weaker ones are refused"),
        ({"encoding": "base32"}, "encoding"),
        ({"signed": "{timestamp}"}, "must have {body} once"),
        ({"signed": "{body}{body}{timestamp}"}, "must have {body} once"),
        ({"signed": "{body}"}, "only where it is signed"),
        ({"timestamp": None}, "only where it is signed"),
        ({"id": ""}, "is empty"),
        ({"id": []}, "is empty"),
        ({"tolerance": timedelta(0)}, "above zero"),
    ],
)
def test_a_generic_verifier_that_would_be_weak_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        generic(**options)


def test_an_authentic_event_without_id_or_type_is_an_event() -> None:
    """What cannot be read is None, and never an error: the event is stored under names of ours."""
    for body, expected in (
        (b"[]", (None, None)),
        (b"{}", (None, None)),
        (b'{"id": 1.5, "type": "t"}', (None, "t")),
        (b'{"id": "e"}', ("e", None)),
        (b'{"id": "", "type": "t"}', (None, "t")),
        (b"not json", (None, None)),
        (b'{"id": "a", "id": "b", "type": "t"}', (None, None)),
        (b"[" * 100_000, (None, None)),
        (b"\xff", (None, None)),
        (b'{"id": true, "type": "t"}', (None, "t")),
    ):
        signed = Signed(body, {"stripe-signature": _stripe_header(body)})
        found = Stripe(SECRET).verify(signed.request, NOW)
        assert (found.id, found.type) == expected
    failing = generic(type=lambda data: data["missing"]["deeper"])
    from tests.webhooks.senders import sign_generic  # noqa: PLC0415

    assert failing.verify(sign_generic(b"{}", "e").request, NOW).type is None


def _stripe_header(body: bytes) -> str:
    digest = hmac.new(SECRET.encode(), f"{NOW}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={NOW},v1={digest}"


def test_slacks_events_and_handshake() -> None:
    verifier = Slack(SECRET)
    callback = json.dumps({"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}).encode()
    found = verifier.verify(sign_slack(callback, "").request, NOW)
    assert (found.id, found.type) == ("Ev1", "app_mention")
    for challenge, allowed in (("3eZbrw1aB10FEMAGAZd4FyFQ", True), ("<script>", False), ("x" * 257, False), (7, False)):
        body = json.dumps({"type": "url_verification", "challenge": challenge}).encode()
        if allowed:
            assert verifier.verify(sign_slack(body, "").request, NOW).challenge == challenge
        else:
            kept = verifier.verify(sign_slack(body, "").request, NOW)  # never echoed, so stored like any other
            assert (kept.challenge, kept.id, kept.type) == (None, None, "url_verification")
        assert refused(verifier, sign_slack(body, "", secret=OTHER))


def test_every_source_says_how_late_it_may_deliver_again() -> None:
    """R31: retention must not be shorter."""
    for sender in SENDERS:
        assert sender.verifier(sender.secrets).redelivery >= timedelta(hours=1), sender.name
