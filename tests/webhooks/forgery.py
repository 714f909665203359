"""Another text with the same CRC-32: why a checksum proves nothing."""

from __future__ import annotations

import zlib

_LENGTH = 64


def colliding(before: bytes, after: bytes, wanted: int) -> bytes:
    """A text between `before` and `after` that gives the whole this CRC.

    CRC-32 is linear: changing one bit always changes the same bits of the sum. So 64 letters of which each may be "a"
    or "c" are 64 unknowns for 32 equations.
    """
    plain = b"a" * _LENGTH

    def crc(filling: bytes) -> int:
        return zlib.crc32(before + filling + after)

    pivots: dict[int, tuple[int, int]] = {}
    for place in range(_LENGTH):
        changed = plain[:place] + b"c" + plain[place + 1 :]
        value, letters = _reduced(crc(changed) ^ crc(plain), 1 << place, pivots)
        if value:
            pivots[value.bit_length() - 1] = (value, letters)
    left, letters = _reduced(crc(plain) ^ wanted, 0, pivots)
    assert left == 0
    return before + bytes(ord("c") if letters >> place & 1 else ord("a") for place in range(_LENGTH)) + after


def _reduced(value: int, letters: int, pivots: dict[int, tuple[int, int]]) -> tuple[int, int]:
    for bit in sorted(pivots, reverse=True):
        if value >> bit & 1:
            value, letters = value ^ pivots[bit][0], letters ^ pivots[bit][1]
    return value, letters
