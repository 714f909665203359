"""How a statement of ours and its values travel to PostgreSQL."""

from __future__ import annotations

import struct

import psycopg
import pytest

from onceward.stores.postgres.statement import Statement


def test_parameters_are_numbered() -> None:
    """Each name once, in the order of its first use; a per cent sign is itself again."""
    text = "SELECT %(b)s, %(a)s::bigint, %(b)s, unnest(%(c)b::text[]) WHERE x LIKE %(a)s || '.%%'"
    statement = Statement.of("some", text)
    assert statement.sql == b"SELECT $1, $2::bigint, $1, unnest($3::text[]) WHERE x LIKE $2 || '.%'"
    assert statement.slots == (("b", ""), ("a", ""), ("c", "text"))
    assert statement.values({"a": 1, "b": 2, "c": ["x"], "more": 3}) == [2, 1, ["x"]]


def test_records_become_columns() -> None:
    """What is the same for all stays what it is."""
    statement = Statement.of("some", "SELECT %(at)s, unnest(%(seq)b::bigint[])")
    many = statement.of_records([{"seq": 1, "x": 0}, {"seq": 2, "x": 0}], {"at": 5})
    assert many == (statement, {"at": 5, "seq": [1, 2]})


def test_one_record_is_a_row_of_values() -> None:
    """The same statement, said of one."""
    statement = Statement.of(
        "some", "SELECT i.a FROM unnest(%(a)b::bigint[],\n %(b)b::text[]) AS i (a, b) WHERE %(at)s = 1"
    )
    single, params = statement.of_records([{"a": 1, "b": "x"}], {"at": 5})
    assert single.sql == b"SELECT i.a FROM (VALUES ($1::bigint,\n $2::text)) AS i (a, b) WHERE $3 = 1"
    assert (single.name, single.values(params)) == ("some_of_one", [1, "x", 5])


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, (None, 0)),
        (True, (b"t", 0)),
        (False, (b"f", 0)),
        (-(2**62), (b"-4611686018427387904", 0)),
        (0.25, (b"0.25", 0)),
        ("größe", ("größe".encode(), 0)),
        (b"\x00\xff", (b"\x00\xff", 1)),
    ],
)
def test_values(value: object, sent: tuple[bytes | None, int]) -> None:
    """As text, which the server reads as the type that the statement says; bytes as they are."""
    values, formats = Statement.of("some", "SELECT %(x)s").encoded({"x": value})
    assert (values[0], formats[0]) == sent


def test_a_text_with_nul_is_refused() -> None:
    """What comes after it would be cut off in silence."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        Statement.of("some", "SELECT %(x)s").encoded({"x": "a\0b"})


def test_a_value_nobody_knows_is_refused() -> None:
    """Rather than sent as whatever it looks like."""
    with pytest.raises(TypeError, match="cannot take"):
        Statement.of("some", "SELECT %(x)s").encoded({"x": object()})


def test_columns() -> None:
    """PostgreSQL's binary arrays, also empty ones and with nulls."""

    def array(kind: str, values: list[object]) -> bytes | None:
        return Statement.of("some", f"SELECT %(x)b::{kind}[]").encoded({"x": values})[0][0]

    assert array("text", []) == struct.pack("!iii", 0, 0, 25)
    assert array("bigint", [1, 2]) == struct.pack("!iiiiiiqiq", 1, 0, 20, 2, 1, 8, 1, 8, 2)
    assert array("integer", [1, None]) == struct.pack("!iiiiiiii", 1, 1, 23, 2, 1, 4, 1, -1)
    assert array("bytea", [b"ab", None]) == struct.pack("!iiiiii2si", 1, 1, 17, 2, 1, 2, b"ab", -1)
