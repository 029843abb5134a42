"""A segment: an immutable file of raw lines behind a header line that says when they arrived.

    opentab-segment 1 {"partition":"default","number":17,"arrived_us":…,"lines":3,"bytes":312,"crc32":…}
    {"time":"2026-01-31T22:15:04.120Z","customer":"emma","type":"CALL","amount":"0.1250"}
    …

The body holds the producers' bytes untouched, so a place in it leads to exactly what was sent.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opentab.errors import SegmentDamaged

MAGIC = b"opentab-segment 1 "
HEADER_BYTES_MAX = 4096


class SegmentHeader(msgspec.Struct, frozen=True):
    partition: str
    number: int
    arrived_us: int
    lines: int
    bytes: int
    crc32: int


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
    return MAGIC + msgspec.json.encode(header) + b"\n"


def read_header(path: Path) -> SegmentHeader:
    """The header alone, without reading the body."""
    with path.open("rb") as file:
        return _header(path, file.read(HEADER_BYTES_MAX))[0]


def read_segment(path: Path) -> Segment:
    """The whole segment, its bytes checked against the header."""
    return parse_segment(path.read_bytes(), path)


def parse_segment(whole: bytes, path: Path | str = "that was sent") -> Segment:
    """The same for the bytes of the file at `path`."""
    data = memoryview(whole)
    header, body_at = _header(path, bytes(data[:HEADER_BYTES_MAX]))
    body = data[body_at:]
    if len(body) != header.bytes or zlib.crc32(body) != header.crc32:
        raise SegmentDamaged(
            f"the log segment {path} is damaged: its bytes are not those that were written",
            hint="restore this file from a backup",
        )
    return Segment(header, body, body_at)


def _header(path: Path | str, start: bytes) -> tuple[SegmentHeader, int]:
    end = start.find(b"\n")
    if not start.startswith(MAGIC) or end < 0:
        raise SegmentDamaged(
            f"{path} is not a log segment of this version of opentab",
            hint="restore this file from a backup, or use the version that wrote it",
        )
    try:
        return msgspec.json.decode(start[len(MAGIC) : end], type=SegmentHeader), end + 1
    except msgspec.MsgspecError as error:
        raise SegmentDamaged(
            f"the header of the log segment {path} is damaged: {error}",
            hint="restore this file from a backup",
        ) from error
