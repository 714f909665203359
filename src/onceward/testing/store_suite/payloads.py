"""Bodies, headers and keys come back as they were sent."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from onceward import InvalidMessage, Message
from onceward.testing.store_suite.behaviour import Steps, raising, wrote
from onceward.testing.store_suite.shop import Shop, arguments

# The body, and a word of the reason.
UNREADABLE: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"hello", "not JSON"),
    "cut off": (b'{"k": 1', "not JSON"),
    "empty": (b"", "not JSON"),
    "blank": (b" \n", "not JSON"),
    "two values": (b"{} {}", "not JSON"),
    "nested deep": (b"[" * 100_000 + b"]" * 100_000, "nested"),
    "nested deep objects": (b'{"k":' * 5_000 + b"1" + b"}" * 5_000, "nested"),
    "nested 70 deep": (b"[" * 70 + b"]" * 70, "nested"),
    "NaN": (b'{"k": NaN}', "NaN"),
    "Infinity": (b'{"k": Infinity}', "Infinity"),
    "-Infinity": (b"[-Infinity]", "Infinity"),
    "1e400": (b'{"k": 1e400}', "1e400"),
    "-1E999": (b"-1E999", "-1E999"),
    "long number": (b'{"k": ' + b"7" * 5_000 + b"}", "digit"),
    "NUL": (b'{"k": "a\\u0000b"}', "u0000"),
    "NUL after backslashes": (b'{"k": "\\\\\\\\\\u0000"}', "u0000"),
    "NUL in a name": (b'{"\\u0000": 1}', "u0000"),
    "raw NUL": (b'{"k": "\x00"}', "not JSON"),
    "duplicate names": (b'{"k": 1, "k": 2}', "'k' twice"),
    "duplicate names inside": (b'{"a": [{"k": 1, "k": 1}]}', "'k' twice"),
    "duplicate names, escaped": (b'{"k": 1, "\\u006b": 2}', "'k' twice"),
    "not UTF-8": (b'{"k": "\xff"}', "UTF-8"),
    "cut off in a character": (b'"\xc3', "UTF-8"),
    "UTF-16": ('{"k": "\\u0000"}'.encode("utf-16"), "UTF-8"),
    "half a character": (b'{"k": "\\ud800"}', "ud800"),
    "half a character in a name": (b'{"\\udfff": 1}', "udfff"),
}


SMALL = 300_000
"""Bodies of fewer bytes fit into every store."""
READABLE: dict[str, tuple[bytes, Any]] = {
    "backslash u0000": (b'{"k": "\\\\u0000"}', {"k": "\\u0000"}),
    "backslash ud800": (b'{"k": "\\\\ud800"}', {"k": "\\ud800"}),
    "a pair": (b'"\\ud83d\\ude00"', "\U0001f600"),
    "null": (b"null", None),
    "a number": (b"-0.5e3", -500.0),
    "a long number": (b"9" * 4_000, int("9" * 4_000)),
    "nested 60 deep": (b"[" * 60 + b"]" * 60, json.loads("[" * 60 + "]" * 60)),
    "many brackets": (json.dumps([[]] * 500).encode(), [[]] * 500),
    "blanks": (b' \n{ "k" : 1 }\t', {"k": 1}),
    "5 MB": (json.dumps({"k": "x" * 5_000_000}).encode(), {"k": "x" * 5_000_000}),
}


def readable(shop: Shop) -> dict[str, tuple[bytes, Any]]:
    """Those that the store keeps itself."""
    if "large bodies" in shop.inbox.store.capabilities:
        return READABLE
    return {name: one for name, one in READABLE.items() if len(one[0]) < SMALL}


def reason(shop: Shop, name: str, words: str) -> str:
    detail = shop.detail(name)
    if (detail.status, detail.attempts) != ("dead", 1):
        return f"{detail.status} after {detail.attempts} attempts"
    error = detail.history[-1].error
    right = error.startswith("InvalidMessage: ") and words in error and len(error) < 300
    return "dead, for the right reason" if right else error


class Payloads:
    """Bodies, headers and keys come back as they were sent."""

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_a_body_that_cannot_be_read_is_dead_with_a_reason(self, shop: Shop, how: str) -> None:
        """Ingest never fails, the bytes are kept, the reason can be read, and other messages go on."""
        shop.handle(key="k")
        for name, (body, _) in UNREADABLE.items():
            assert getattr(shop, how)(name, body=body).status == "accepted"
            getattr(shop, how)(f"good {name}", data={"k": 1})
        shop.drain()
        assert shop.effects() == sorted(f"good {name}" for name in UNREADABLE)
        found = {name: reason(shop, name, words) for name, (_, words) in UNREADABLE.items()}
        assert found == dict.fromkeys(UNREADABLE, "dead, for the right reason")
        for name, (body, _) in UNREADABLE.items():
            assert (shop.detail(name).body, shop.detail(name).hash) == (body, hashlib.sha256(body).hexdigest())
            assert shop.receive(name, body=body).status == "duplicate"

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_a_body_that_can_be_read_is_read_exactly(self, shop: Shop, how: str) -> None:
        """A handler sees what was sent."""
        seen: dict[str, Message] = {}

        def look(message: Message) -> Steps:
            seen[message.id] = message
            yield wrote(message)

        shop.handle(behaviour=look)
        bodies = readable(shop)
        for name, (body, _) in bodies.items():
            getattr(shop, how)(name, body=body)
        shop.drain()
        assert shop.effects() == sorted(bodies)
        for name, (body, value) in bodies.items():
            assert (seen[name].data, seen[name].body, shop.detail(name).body) == (value, body, body)

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_a_body_that_the_store_cannot_keep_is_refused_by_name(self, shop: Shop, how: str) -> None:
        """Where there is a limit, the sender gets to know it, and nothing is stored."""
        if "large bodies" in shop.inbox.store.capabilities:
            return
        shop.handle()
        with pytest.raises(InvalidMessage, match=r"message 'm1' has 5000009 bytes.*blobs="):
            getattr(shop, how)("m1", body=READABLE["5 MB"][0])
        assert shop.receive("m1").status == "accepted"
        shop.finish()

    def test_a_raw_handler_gets_any_bytes(self, shop: Shop) -> None:
        """`raw=True` leaves the body unread; whatever it is, it is not dead."""
        seen: dict[str, tuple[Any, bytes]] = {}

        def look(message: Message) -> Steps:
            seen[message.id] = (message.data, message.body)
            yield wrote(message)

        bodies = {name: body for name, (body, _) in {**UNREADABLE, **readable(shop)}.items()}
        shop.handle(behaviour=look, raw=True)
        shop.receive_many(arguments(name, more={"body": body}) for name, body in bodies.items())
        shop.process("all bytes", body=bytes(range(256)))
        shop.drain()
        assert seen == {name: (None, body) for name, body in {**bodies, "all bytes": bytes(range(256))}.items()}

    def test_a_key_that_is_odd_still_orders(self, shop: Shop) -> None:
        """A key may be anything JSON has; what a text column cannot keep is kept by its hash."""
        shop.handle(key="k", behaviour=raising(lambda: RuntimeError("head"), attempts=1))
        keys = [7, "7 ", 1.5, True, ["a"], {"b": 1}, "x" * 5_000, "a\tb", ""]
        for number, key in enumerate(keys):
            shop.receive(f"head {number}", data={"k": key})
            shop.receive(f"next {number}", data={"k": key})
        shop.drain()
        waiting = {row.id for row in shop.inbox.admin.messages(status="waiting")}
        assert waiting == {f"next {number}" for number in range(len(keys))}
        shop.finish()
        shop.finish()
        assert len(shop.effects()) == 2 * len(keys)

    def test_a_body_is_forgotten_only_after_success(self, shop: Shop) -> None:
        """`keep_body=False` keeps the body while it is needed, and its hash for ever."""
        shop.handle(keep_body=False, behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        shop.receive("m1", body=b'"stored"')
        shop.process("m2", body=b'"inline"')
        shop.drain()
        assert [(shop.status(m), shop.detail(m).body) for m in ("m1", "m2")] == [
            ("retrying", b'"stored"'),
            ("retrying", b'"inline"'),
        ]
        shop.finish()
        for message_id, body in (("m1", b'"stored"'), ("m2", b'"inline"')):
            detail = shop.detail(message_id)
            assert (detail.status, detail.body, detail.hash) == ("done", None, hashlib.sha256(body).hexdigest())
            assert (detail.id, detail.type) == (message_id, "order.paid")
            assert shop.receive(message_id, body=body).status == "duplicate"
            assert shop.process(message_id, body=b'"other"').status == "mismatch"

    def test_each_consumer_keeps_its_own_body(self, shop: Shop) -> None:
        """One consumer's wish to forget does not take the body from another."""
        shop.handle(consumer="forgets", keep_body=False)
        shop.handle(consumer="keeps")
        shop.receive("m1", body=b'"x"')
        shop.drain()
        bodies = {row.consumer: shop.detail(row.seq).body for row in shop.inbox.admin.messages()}
        assert bodies == {"forgets": None, "keeps": b'"x"'}
