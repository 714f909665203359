"""JSON is read strictly: what two parsers could read differently is refused, with `InvalidMessage` and nothing else."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.domain import payload
from onceward.errors import InvalidMessage

# What every database can keep in a text column: no NUL, no half characters.
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
# What a caller may pass by mistake or by malice.
WILD_TEXT = st.text(st.characters(), max_size=10)
WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD_TEXT | st.binary(max_size=4) | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WILD_TEXT | st.integers(0, 3) | st.booleans() | st.sampled_from("0123"), inner, max_size=4)
        | st.tuples(inner)
    ),
    max_leaves=6,
)


def nested(opening: str, closing: str, levels: int, inside: str = "") -> bytes:
    return (opening * levels + inside + closing * levels).encode()


@given(DATA)
@example({"a": [1, 1.5, None, True, "ß", "\U0001f600"], "": {}})
@example(10**400)
def test_what_is_written_is_read_back(data: Any) -> None:
    """Encoding and decoding is the identity on JSON data."""
    assert payload.decode(payload.encode(data)) == data


@given(DATA)
def test_text_and_bytes_say_the_same(data: Any) -> None:
    """Both forms hold the same data, and the text form is ASCII without NUL."""
    text = payload.encode_text(data)
    assert text.isascii()
    assert "\x00" not in text
    assert payload.decode(text.encode()) == data


@given(WILD)
@example("\x00")
@example({"a": ["b\x00"]})
@example({1: "a", "1": "b"})
@example(json.loads(nested("[", "]", 65)))
@example("\ud800")
@example(math.nan)
def test_what_can_be_written_is_read_or_refused_by_name(data: Any) -> None:
    """Whatever was stored, a worker reads it or says why not; it never fails otherwise."""
    with suppress(InvalidMessage):
        payload.decode(payload.encode(data))


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xef\xbb\xbf1")
@example(b"\xff\xfe1\x00")
@example(b"\x00\x00\x00[")
@example(b'"\xed\xa0\x80"')
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"1" * 5_000)
@example(b"-" + b"9" * 5_000 + b"e1")
@example(b"1e" + b"9" * 5_000)
def test_bytes_are_read_or_refused(body: bytes) -> None:
    """Whatever the bytes are, nothing but `InvalidMessage` comes out."""
    try:
        payload.decode(body)
    except InvalidMessage as error:
        assert str(error)  # noqa: PT017 - the error is one of two right answers


JSON_LIKE = st.lists(
    st.sampled_from(
        ['"', "\\", "u", "0000", "d800", "{", "}", "[", "]", ":", ",", "1", "e9", "-", ".", "NaN", "a", " ", "\x00"]
    ),
    max_size=30,
).map("".join)


@given(JSON_LIKE, st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-8-sig"]))
def test_text_that_is_almost_json_is_read_or_refused(text: str, encoding: str) -> None:
    """What comes out of a body can be kept: no NUL, no number without a value, whatever its encoding."""
    try:
        data = payload.decode(text.encode(encoding))
    except InvalidMessage:
        return
    written = json.dumps(data, ensure_ascii=True, allow_nan=False)
    assert "\\u0000" not in written.replace("\\\\", "")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("inside", ["1", "[]", "{}", "null"])
def test_nesting_ends_at_the_limit(opening: str, closing: str, inside: str) -> None:
    """As many levels as promised are read, one more is refused, whatever is inside."""
    own = 1 if inside in ("[]", "{}") else 0
    payload.decode(nested(opening, closing, payload.MAX_DEPTH - own, inside))
    with pytest.raises(InvalidMessage, match="64 levels"):
        payload.decode(nested(opening, closing, payload.MAX_DEPTH - own + 1, inside))


@pytest.mark.parametrize("levels", [500, 5_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_depth_never_breaks_the_parser(opening: str, closing: str, levels: int) -> None:
    """Nesting beyond Python's own recursion limit is an ordinary `InvalidMessage`."""
    with pytest.raises(InvalidMessage, match="nested deeper"):
        payload.decode(nested(opening, closing, levels, "1"))


def test_many_brackets_are_not_depth() -> None:
    """A long flat body is not a deep one."""
    assert payload.decode(b"[" + b",".join([b"[1]"] * 500) + b"]") == [[1]] * 500
    assert payload.decode(b'"' + b"[" * 500 + b'"') == "[" * 500


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"NaN", "holds NaN"),
        (b'{"a": Infinity}', "holds Infinity"),
        (b"[-Infinity]", "holds -Infinity"),
        (b"1E400", "1E400, which is too large"),
        (b'{"a": -1e999}', "-1e999, which is too large"),
        (b'{"a":1,"a":1}', "field 'a' twice"),
        (b'{"x":{"b":1,"c":2,"b":3}}', "field 'b' twice"),
        (b'{"a":1,"\\u0061":2}', "field 'a' twice"),
        (b'"\\u0000"', "u0000"),
        (b'{"\\u0000":1}', "u0000"),
        (b'"\\\\\\u0000"', "u0000"),
        (b'"\\ud800"', "half a character"),
        (b'{"a":["\\udc00\\ud800"]}', "half a character"),
        (b'{"\\ud83d":1}', "half a character"),
        (b'"\x00"', "not JSON"),
        (b'"\n"', "not JSON"),
        (b"", "not JSON"),
        (b"   ", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"01", "not JSON"),
        (b"1 2", "not JSON"),
        (b"+1", "not JSON"),
        (b".5", "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"\xc3\x28", "not"),
    ],
)
def test_what_parsers_disagree_about_is_refused(body: bytes, reason: str) -> None:
    """Each refusal says what was found."""
    with pytest.raises(InvalidMessage) as caught:
        payload.decode(body)
    assert reason in str(caught.value)


def test_a_whole_character_in_two_escapes_is_fine() -> None:
    """What JSON can only write as a pair is one character."""
    assert payload.decode(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("body", [b'"\\\\u0000"', b'"u0000"', b'{"a\\\\u0000":"\\\\\\\\u0000"}'])
def test_an_escaped_backslash_is_not_a_nul(body: bytes) -> None:
    r"""The text `\u0000`, spelled with an escaped backslash, is ordinary text."""
    assert "\x00" not in json.dumps(payload.decode(body), ensure_ascii=False)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", ['{"a":"\\u0000"}', '"\\u0000"', "[1]"])
def test_only_utf_8_is_json(text: str, encoding: str) -> None:
    """JSON between systems is UTF-8 (RFC 8259): no other encoding slips past the checks."""
    with pytest.raises(InvalidMessage):
        payload.decode(text.encode(encoding))


@pytest.mark.parametrize("body", [b'"\xed\xa0\x80"', b'"\xed\xb3\xbf"', b'{"\xed\xa0\xbd\xed\xb8\x80":1}'])
def test_surrogates_in_bytes_are_not_utf_8(body: bytes) -> None:
    """Half characters written as bytes are not UTF-8, so they are refused like other bad bytes."""
    with pytest.raises(InvalidMessage, match="not UTF-8"):
        payload.decode(body)


def test_a_duplicate_field_is_found_at_once() -> None:
    """A stranger's body cannot hold up the process: finding the field that came twice takes one look at each."""
    fields = ",".join(f'"field{number:06}":0' for number in range(12_000))
    body = f'{{{fields},"field011999":1}}'.encode()
    started = time.thread_time()  # whoever else works on this machine
    with pytest.raises(InvalidMessage, match="'field011999' twice"):
        payload.decode(body)
    assert time.thread_time() - started < 0.7


@pytest.mark.parametrize("data", [object(), b"bytes", {"a": math.nan}, [math.inf], {(1, 2): 3}, "\ud800", [10**5_000]])
def test_data_that_is_not_json_is_refused(data: Any) -> None:
    """Data without a JSON form is refused with advice."""
    with pytest.raises(InvalidMessage, match=r"cannot be written as JSON.*body="):
        payload.encode(data)


def test_a_circle_is_refused() -> None:
    """Data that contains itself is refused, not followed for ever."""
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidMessage, match="cannot be written"):
        payload.encode(circle)


def test_bytes_do_not_depend_on_luck() -> None:
    """The bytes that are hashed are compact, and the same for the same data in whatever order."""
    assert payload.encode({"b": 1, "a": [1.0, "ß"]}) == '{"a":[1.0,"ß"],"b":1}'.encode()
