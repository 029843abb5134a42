"""The checksum that every value of a replica ends with: CRC-32 over its key and itself.

The key is part of it, so a value that a damaged B-tree page puts under another key is found, too.
"""

from __future__ import annotations

from zlib import crc32

from opentab.core.errors import ReplicaDamaged

CHECKSUM_BYTES = 4
# The CRC-32 of any bytes that their own CRC-32 follows. To compare with it is one call, without a copy.
RESIDUE = 0x2144DF1C


def sealed(key: bytes, value: bytes) -> bytes:
    """A value with its checksum."""
    return value + crc32(value, crc32(key)).to_bytes(CHECKSUM_BYTES, "little")


def opened(key: bytes, value: bytes) -> bytes:
    """A value without its checksum; raises ReplicaDamaged where they do not agree."""
    if len(value) < CHECKSUM_BYTES or crc32(value, crc32(key)) != RESIDUE:
        raise damaged(f"the value of {key!r} does not match its checksum")
    return value[:-CHECKSUM_BYTES]


def damaged(what: str) -> ReplicaDamaged:
    """A copy that must not be read any more."""
    return ReplicaDamaged(f"the replica is damaged: {what}", hint="it is rebuilt from the ledger by itself")
