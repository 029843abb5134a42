"""A checksum for Parquet footers.

Parquet has a checksum for each page, but none for the footer. One flipped bit in a footer's statistics makes a reader
skip rows without a word. So the footer's key-value metadata carries a CRC-32 of the footer itself, as eight hex digits,
computed while these digits are zeros. The sink below holds the footer back until the writer closes, fills the digits
in, and only then writes it: nothing is written twice, so it works for a bucket's stream too.
"""

from __future__ import annotations

import zlib
from typing import Any

KEY = "opentab.footer_crc32"
BLANK = "0" * 8
TAIL_BYTES = 8  # the footer's length and the magic number, after the footer
MAGIC = b"PAR1"
# Thrift's compact protocol: field 1 is the key, then the header of field 2 and the value's length.
_BEFORE_DIGITS = KEY.encode() + b"\x18\x08"


class FooterSink:
    """A file to write Parquet to, which holds the footer back and adds its checksum."""

    closed = False  # pyarrow asks

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = 0
        self._held: list[bytes] | None = None

    def hold(self) -> None:
        """Hold back all that is written from now on."""
        self._held = []

    def release(self) -> None:
        """Write what was held back, which ends with the footer."""
        held, self._held = b"".join(self._held or []), None
        footer_bytes = int.from_bytes(held[-TAIL_BYTES : -len(MAGIC)], "little")
        begin = len(held) - TAIL_BYTES - footer_bytes
        self._file.write(held[:begin] + _sealed(held[begin:-TAIL_BYTES]) + held[-TAIL_BYTES:])

    def write(self, data: Any) -> int:
        size = len(data)
        self._size += size
        if self._held is None:
            self._file.write(data)
        else:
            self._held.append(bytes(data))
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def checksum_agrees(footer: bytes) -> bool | None:
    """Whether a footer is the one that was written; None where it has no checksum."""
    at = footer.rfind(_BEFORE_DIGITS)  # the last one: texts in the statistics come before the key
    if at < 0:
        return None
    begin = at + len(_BEFORE_DIGITS)
    end = begin + len(BLANK)
    return footer[begin:end] == _digits(footer[:begin] + BLANK.encode() + footer[end:])


def _sealed(footer: bytes) -> bytes:
    begin = footer.rfind(_BEFORE_DIGITS) + len(_BEFORE_DIGITS)
    return footer[:begin] + _digits(footer) + footer[begin + len(BLANK) :]


def _digits(footer: bytes) -> bytes:
    return b"%08x" % zlib.crc32(footer)
