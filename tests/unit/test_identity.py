"""Ids, names, keys and hashes are compared byte by byte: nothing is folded, cut or confused."""

from __future__ import annotations

import string
import zlib
from collections import Counter
from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.domain import identity
from onceward.errors import ConfigurationError, InvalidMessage

SAFE = st.characters(exclude_categories=["Cs", "Cc"])
UUIDS = st.uuids().map(str)
# Ids that look like one another, like stored forms, like attacks.
NEAR = st.sampled_from(
    [
        "ABC",
        "abc",
        "abc ",
        " abc",
        "é",
        "e\u0301",
        "' OR 1=1 --",
        "u",
        "r",
        "d",
        "sha256:" + "0" * 64,
        "00000000-0000-0000-0000-000000000000",
        "00000000-0000-0000-0000-00000000000A",
        "00000000-0000-0000-0000-00000000000a",
        "{00000000-0000-0000-0000-00000000000a}",
        "0000000000000000000000000000000a",
        "x" * 199,
        "x" * 200,
        "x" * 201,
        "x" * 1024,
        "\U0001f600" * 50,
        "\U0001f600" * 51,
    ]
)
IDS = (st.text(SAFE, min_size=1, max_size=250) | UUIDS | UUIDS.map(str.upper) | NEAR).filter(
    lambda one: len(one.encode()) <= identity.MAX_ID_BYTES
)


@given(st.lists(IDS, min_size=2, max_size=8, unique=True))
@example(["ABC", "abc", "abc ", "é", "e\u0301"])
def test_different_ids_are_stored_differently(ids: list[str]) -> None:
    """The stored form is injective, so no message is ever taken for another."""
    assert len({identity.stored_id(one) for one in ids}) == len(ids)


@given(IDS)
def test_an_id_comes_back(one: str) -> None:
    """A stored id reads as it was sent; a long one as the digest that identifies it."""
    stored = identity.stored_id(one)
    if len(one.encode()) <= 200:
        assert identity.readable_id(stored) == one
    else:
        assert identity.readable_id(stored).startswith("sha256:")
    assert len(stored) <= 201
    assert identity.stored_id(one) == stored


@given(IDS, IDS, st.sampled_from([None, "a", "ab"]), st.sampled_from([None, "a", "ab"]))
def test_an_id_is_another_one_for_each_destination(one: str, other: str, there: str | None, where: str | None) -> None:
    """D03: unambiguous, found by the id alone, and readable as it was."""
    stored, second = identity.stored_id(one, there), identity.stored_id(other, where)
    assert (stored == second) == ((one, there) == (other, where))
    place = identity.stored_range(other)
    assert (place["from_id"] <= stored < place["below_id"]) == (one == other)
    assert identity.readable_id(stored) == identity.readable_id(identity.stored_id(one))


@given(st.uuids())
def test_a_uuid_takes_seventeen_bytes(one: UUID) -> None:
    """Only the canonical spelling is small; other spellings are other ids."""
    assert len(identity.stored_id(str(one))) == 17
    for other in (str(one).upper(), one.hex, f"{{{one}}}", one.urn):
        if other != str(one):
            assert identity.stored_id(other) != identity.stored_id(str(one))
            assert identity.readable_id(identity.stored_id(other)) == other


@given(st.lists(st.text(string.ascii_lowercase + string.digits, min_size=20, max_size=20), min_size=2, max_size=6))
def test_ids_that_carry_time_stay_in_order(ids: list[str]) -> None:
    """Ids that keep their bytes sort in the index as they sort in text."""
    assert [identity.readable_id(stored) for stored in sorted(map(identity.stored_id, ids))] == sorted(ids)


@given(st.text(st.characters(), max_size=300))
def test_a_checked_id_is_the_same_id(one: str) -> None:
    """An accepted id is returned unchanged, holds nothing a database refuses, and has at most 1024 bytes."""
    try:
        assert identity.check_id(one) == one
    except InvalidMessage as error:
        assert str(error).startswith("id ")  # noqa: PT017 - the error is one of two right answers
        return
    assert 1 <= len(one.encode()) <= 1024
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in one)


@pytest.mark.parametrize("one", ["a", " ", "x" * 1024, "ü" * 512, "\U0001f600" * 256, "a\u2028b", "null"])
def test_ids_that_are_fine(one: str) -> None:
    """Anything a producer may reasonably choose is accepted, up to the last byte."""
    assert identity.check_id(one) == one


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        ("", "id is empty"),
        ("a\x00", "character '\\x00'"),
        ("a\r\nb", "character '\\r'"),
        ("a\x7f", "character '\\x7f'"),
        ("a\x85", "character '\\x85'"),
        ("a\ud800", "character '\\ud800'"),
        ("x" * 1025, "has 1025 bytes; at most 1024"),
        ("ü" * 513, "has 1026 bytes; at most 1024"),
        (7, "id must be text, not int: 7"),
        (None, "id must be text, not NoneType"),
        (b"a", "id must be text, not bytes"),
        (["x" * 500], "id must be text, not list"),
    ],
)
def test_ids_that_are_not(one: Any, reason: str) -> None:
    """A refusal names the field and the reason, and does not repeat a long value."""
    with pytest.raises(InvalidMessage) as caught:
        identity.check_id(one)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 250


def test_names_have_their_own_limit() -> None:
    """A name may have 255 bytes, and the refusal says which name it was."""
    assert identity.check_name("type", "x" * 255) == "x" * 255
    with pytest.raises(InvalidMessage, match=r"source .*256 bytes; at most 255"):
        identity.check_name("source", "x" * 256)


@pytest.mark.parametrize("prefix", ["onceward_", "a", "_", "_9", "x" * 31])
def test_prefixes_that_are_fine(prefix: str) -> None:
    """A prefix is an ordinary lower-case identifier."""
    assert identity.check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix", ["", "9a", "A", "a-b", "a b", "a;", 'a"', "a'--", "ä", "a\n", "\na", "a.b", "x" * 32, "a%", "a{"]
)
def test_prefixes_that_are_not(prefix: str) -> None:
    """Nothing that could end an identifier gets into SQL text."""
    with pytest.raises(ConfigurationError, match="prefix"):
        identity.check_prefix(prefix)


@given(st.text(st.characters(), max_size=40))
def test_any_prefix_is_harmless_or_refused(prefix: str) -> None:
    """What is accepted consists of letters, digits and underscores."""
    try:
        identity.check_prefix(prefix)
    except ConfigurationError:
        return
    assert set(prefix) <= set(string.ascii_lowercase + string.digits + "_")
    assert 1 <= len(prefix) <= 31


KEYS = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(KEYS)
@example("\x00")
@example("\ud800")
@example(["\ud800", "\x00"])
@example("x" * 1025)
@example("\U0001f600" * 257)
@example("")
def test_a_key_can_be_stored_and_stays_the_same(value: Any) -> None:
    """Any key becomes text that every database can store, the same every time, with a number of 64 bits."""
    text = identity.key_text(value)
    assert text is not None
    assert identity.key_text(value) == text
    assert identity.key_text(text) == text
    assert len(text.encode()) <= 1024
    assert "\x00" not in text
    number = identity.key_hash("p_", "consumer", text)
    assert -(2**63) <= number < 2**63
    assert identity.key_hash("p_", "consumer", text) == number


@given(st.lists(st.text(st.characters(), max_size=30), min_size=2, max_size=6, unique=True))
@example(["x" * 1025, "x" * 1026])
@example(["\ud800", "\udc00", "\x00", "\x01"])
def test_different_text_keys_stay_different(values: list[str]) -> None:
    """Two different keys never become one, however odd they are."""
    assert len({identity.key_text(value) for value in values}) == len(values)


def test_keys_by_example() -> None:
    """Text stays as it is, other values become JSON, nothing stays nothing."""
    assert identity.key_text(None) is None
    assert identity.key_text("order-7") == "order-7"
    assert identity.key_text(7) == "7"
    assert identity.key_text(True) == "true"  # noqa: FBT003 - a key that is a boolean
    assert identity.key_text(["a", 1]) == '["a",1]'
    assert identity.key_text("a\x00b") == identity.key_text("a\x00b")
    assert str(identity.key_text("a\x00b")).startswith("sha256:")


@given(st.integers(0, 2), st.text(SAFE, min_size=1, max_size=10))
def test_a_key_belongs_to_its_consumer_and_prefix(part: int, change: str) -> None:
    """The same key of another consumer or another inbox is another key."""
    one = ["p_", "consumer", "key"]
    other = list(one)
    other[part] += change
    assert identity.key_hash(*one) != identity.key_hash(*other)


def test_key_hashes_are_spread() -> None:
    """Neighbouring keys use the whole range, both signs included."""
    numbers = [identity.key_hash("p_", "c", str(number)) for number in range(1000)]
    assert len(set(numbers)) == 1000
    assert min(numbers) < -(2**62)
    assert max(numbers) > 2**62


@pytest.mark.parametrize(
    ("text", "slot"),
    [("order-7", 157), ("a", 3723), ("\u00e4", 1803), ("0f8fad5b-d9cb-469f-a165-70867728950e", 3914), ("", 0)],
)
def test_slots_are_pinned(text: str, slot: int) -> None:
    """Rows carry their slot, and other programs compute it: the first 12 bits of the CRC-32, for ever."""
    assert identity.slot(text) == slot == zlib.crc32(text.encode()) >> 20


def test_slots_are_spread() -> None:
    """Neighbouring keys use all 4,096 of them."""
    counts = Counter(identity.slot(f"order-{number}") for number in range(65_536))
    assert (min(counts), max(counts), len(counts)) == (0, 4095, 4096)
    assert max(counts.values()) < 50


def test_a_body_hash_is_of_the_bytes() -> None:
    """Equal only when every byte is: JSON that means the same is not the same body."""
    assert identity.body_hash(b"1") != identity.body_hash(b"1.0")
    assert identity.body_hash(b'{"a":1,"b":2}') != identity.body_hash(b'{"b":2,"a":1}')
    assert len(identity.body_hash(b"")) == 32


def test_a_new_id_is_nobody_elses() -> None:
    ids = [identity.new_id() for _ in range(100)]
    assert len({*ids}) == 100
    assert all(len(bytes.fromhex(one)) == 16 for one in ids)


def test_stored_forms_are_pinned() -> None:
    """The stored form is part of the database: changing it would make every old message new."""
    namespace = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    one = uuid5(namespace, "onceward")
    assert identity.stored_id(str(one)) == b"u" + one.bytes
    assert identity.stored_id("evt_1") == b"revt_1"
    assert identity.stored_id("x" * 201)[:5].hex() == "6484a0678c"
    assert identity.key_hash("onceward_", "default", "order-7") == 7_909_428_609_962_988_951
