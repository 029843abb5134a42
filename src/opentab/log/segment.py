"""A segment: an immutable file of raw lines after a header line that says when they arrived.

    opentab-segment 1 {"partition":"default","number":17,…,"bytes":312,"crc32":…,"header_crc32":…}
    {"time":"2026-01-31T22:15:04.120Z","customer":"emma","type":"CALL","amount":"0.1250"}
    …

The body holds the producers' bytes untouched, so a place in it leads to exactly what was sent. `crc32` is the
checksum of the body, `header_crc32` that of the header line up to this last field. Segments of earlier versions
have no `header_crc32`; of those only the fields that the file name repeats are checked.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opentab.core.errors import SegmentDamaged

MAGIC = b"opentab-segment 1 "
HEADER_BYTES_MAX = 4096
HEADER_CRC = b',"header_crc32":'
RESTORE = "restore this file from a backup"


class SegmentHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    partition: str
    number: int
    arrived_us: int
    lines: int
    bytes: int
    crc32: int
    header_crc32: int | None = None  # None: written by an earlier version


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment's header and its body; `body_at` is where the body starts in the file."""

    header: SegmentHeader
    body: memoryview
    body_at: int


def encode_header(partition: str, number: int, arrived_us: int, body: bytes) -> bytes:
    header = SegmentHeader(
        partition=partition,
        number=number,
        arrived_us=arrived_us,
        lines=body.count(b"\n"),
        bytes=len(body),
        crc32=zlib.crc32(body),
    )
    start = MAGIC + msgspec.json.encode(header).removesuffix(b"}")
    return b"%b%b%d}\n" % (start, HEADER_CRC, zlib.crc32(start))


def read_header(path: Path) -> SegmentHeader:
    """The header alone, checked, without reading the body."""
    with path.open("rb") as file:
        return _header(path, file.read(HEADER_BYTES_MAX))[0]


def read_segment(path: Path) -> Segment:
    """The whole segment: its bytes checked against the header, and the header against its checksum and its name."""
    return parse_segment(path.read_bytes(), path)


def parse_segment(whole: bytes, path: Path) -> Segment:
    """The same for the bytes of the file at `path`."""
    data = memoryview(whole)
    header, body_at = _header(path, bytes(data[:HEADER_BYTES_MAX]))
    body = data[body_at:]
    if len(body) != header.bytes or zlib.crc32(body) != header.crc32:
        raise SegmentDamaged(
            f"the log segment {path} is damaged: its bytes are not those that were written", hint=RESTORE
        )
    return Segment(header, body, body_at)


def _header(path: Path, start: bytes) -> tuple[SegmentHeader, int]:
    end = start.find(b"\n")
    if not start.startswith(MAGIC) or end < 0:
        raise SegmentDamaged(
            f"{path} is not a log segment of this version of opentab",
            hint=f"{RESTORE}, or use the version that wrote it",
        )
    text = start[len(MAGIC) : end]
    try:
        header = msgspec.json.decode(text, type=SegmentHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SegmentDamaged(f"the header of the log segment {path} is damaged: {error}", hint=RESTORE) from error
    if header.header_crc32 is None:
        # Without a checksum the header is exactly what an earlier version wrote: no field more, no byte less.
        is_whole = msgspec.json.encode(header) == text
    else:
        is_whole = zlib.crc32(start[:end].rpartition(HEADER_CRC)[0]) == header.header_crc32
    if not is_whole:
        raise SegmentDamaged(
            f"the header of the log segment {path} is damaged: it is not what was written", hint=RESTORE
        )
    if (header.partition, header.number) != _named(path):
        raise SegmentDamaged(
            f"the log segment {path} says that it is number {header.number} of partition {header.partition!r}",
            hint=RESTORE,
        )
    return header, end + 1


def _named(path: Path) -> tuple[str, int]:
    """The partition and the number that the name of a segment's file says, incoming or archived."""
    partition, dash, number = path.stem.rpartition("-")
    return partition if dash else path.parent.parent.name, int(number)
