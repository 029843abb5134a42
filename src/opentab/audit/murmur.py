"""MurmurHash3, x64, 128 bits: the key under which the journal remembers an id. For a sample, so slow is fine."""

from __future__ import annotations

MASK = 2**64 - 1
C1 = 0x87C37B91114253D5
C2 = 0x4CF5AD432745937F


def murmur(data: bytes, seed: int) -> tuple[int, int]:
    """The two words of the hash, with a sign."""
    h1 = h2 = seed
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = int.from_bytes(data[at : at + 8], "little"), int.from_bytes(data[at + 8 : at + 16], "little")
        h1 ^= _mixed_1(k1)
        h1 = ((_turned(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= _mixed_2(k2)
        h2 = ((_turned(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    h1 ^= _mixed_1(int.from_bytes(data[whole : whole + 8], "little")) ^ len(data)
    h2 ^= _mixed_2(int.from_bytes(data[whole + 8 :], "little")) ^ len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = _final(h1), _final(h2)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    return _signed(h1), _signed(h2)


def _mixed_1(k: int) -> int:
    return _turned(k * C1 & MASK, 31) * C2 & MASK


def _mixed_2(k: int) -> int:
    return _turned(k * C2 & MASK, 33) * C1 & MASK


def _turned(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def _final(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & MASK
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return k ^ k >> 33


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
