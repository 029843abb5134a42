"""The log as bytes, and nothing else: a directory's files, found and checked against their own header."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from opentab.audit.wire import NotJsonError, Number, read
from opentab.core.errors import LogError, SegmentDamaged
from opentab.runtime.config import Home

MAGIC = b"opentab-segment 1 "
HEADER_BYTES_MAX = 4096
Int64s = npt.NDArray[np.int64]
EARLIER_FIELDS = {"partition", "number", "arrived_us", "lines", "bytes", "crc32"}
# A header with its own checksum: the bytes that it is of, and the checksum.
SEALED = re.compile(rb'(.*),"header_crc32":([0-9]+)\}')
INCOMING_NAME = re.compile(r"(.+)-([0-9]{12})\.seg")


@dataclass(frozen=True, slots=True)
class RawLines:
    """Lines of one partition as they came, when each arrived, and where each stands.

    `body` holds them one behind the other, each with a newline; `starts` says where each begins, and the end.
    `numbers` and `bytes_at` are where they stand in the log: the segment or the offset, and where in the file.
    """

    partition: str
    body: bytes
    starts: Int64s
    arrived_us: Int64s
    numbers: Int64s
    bytes_at: Int64s
    place: Callable[[int], str]  # of a line, by its index
    is_checked: bool = True  # False: its header, of an earlier version, has no checksum

    def line(self, index: int) -> bytes:
        """A line without its end."""
        return self.body[int(self.starts[index]) : int(self.starts[index + 1]) - 1]


class RawLog(Protocol):
    """A log, read only."""

    unit: str  # what its numbers count
    begins_anywhere: bool  # whether its first number may be gone before the first batch
    base: int  # by how much the numbers that batches count are greater than those of the places

    def __hash__(self) -> int: ...

    def id(self) -> str | None:
        """Which log this is; None if it is not there or has no id."""
        ...

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """A range of numbers in pieces that are read at once."""
        ...

    def read(self, partition: str, first: int, last: int) -> RawLines:
        """A piece; raises LogError where it is gone and SegmentDamaged where it is not whole."""
        ...

    def stamp_from(self, partition: str, number: int) -> tuple[int, int] | None:
        """The number and the stamped arrival of this one, or of the next one there is; None if there is none."""
        ...

    def waiting(self, positions: dict[str, int]) -> int:
        """How many lie behind `positions`, which no batch has taken."""
        ...


def open_raw(home: Home) -> RawLog:
    """The log that a home's settings name."""
    if home.kafka is not None:
        from opentab.audit.raw_topic import RawTopic

        return RawTopic(home.kafka)
    return RawDirectory(home.log_path)


class RawDirectory:
    """A log directory."""

    unit = "segments"
    begins_anywhere = False
    base = 0

    def __init__(self, path: Path) -> None:
        self.path = path

    def id(self) -> str | None:
        """What its file says."""
        try:
            return (self.path / "id").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Segment by segment."""
        return ((number, number) for number in range(first, last + 1))

    def read(self, partition: str, first: int, last: int) -> RawLines:
        """A whole segment, checked."""
        number = first
        data = self._bytes(partition, number)
        name = f"segment {number} of log partition {partition!r}"
        if data is None:
            raise LogError(f"{name} is gone", hint="restore the log directory from a backup")
        header, body_at = _header(data, name)
        body = data[body_at:]
        found = {
            "partition": partition,
            "number": number,
            "lines": body.count(b"\n"),
            "bytes": len(body),
            "crc32": zlib.crc32(body),
        }
        wrong = [key for key, value in found.items() if header.get(key) != value]
        if wrong or not isinstance(header.get("arrived_us"), int) or not body.endswith(b"\n"):
            what = ", ".join(wrong) or "arrival or last line"
            raise SegmentDamaged(f"{name} is damaged: its {what} is not that of its header")
        ends = np.flatnonzero(np.frombuffer(body, np.uint8) == 10) + 1
        starts = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
        return RawLines(
            partition,
            body,
            starts,
            np.full(len(ends), header["arrived_us"], np.int64),
            np.full(len(ends), number, np.int64),
            body_at + starts[:-1],
            lambda index: f"{partition}/{number}@{body_at + int(starts[index])}",
            is_checked="header_crc32" in header,
        )

    def stamp_from(self, partition: str, number: int) -> tuple[int, int] | None:
        """When a segment arrived, as it is stamped; None if it is not there or its header is damaged."""
        data = self._bytes(partition, number, HEADER_BYTES_MAX)
        try:
            arrived_us = None if data is None else _header(data, "")[0].get("arrived_us")
        except SegmentDamaged:
            return None
        return (number, arrived_us) if isinstance(arrived_us, int) else None

    def waiting(self, positions: dict[str, int]) -> int:
        """How many segments lie behind `positions`, incoming or archived."""
        found = set()
        if (self.path / "incoming").is_dir():
            for file in (self.path / "incoming").iterdir():
                match = INCOMING_NAME.fullmatch(file.name)
                if match and int(match[2]) > positions.get(match[1], 0):
                    found.add((match[1], int(match[2])))
        if (self.path / "archive").is_dir():
            for directory in (self.path / "archive").iterdir():
                number = positions.get(directory.name, 0) + 1
                while self._archived(directory.name, number).exists():
                    found.add((directory.name, number))
                    number += 1
        return len(found)

    def _archived(self, partition: str, number: int) -> Path:
        return self.path / "archive" / partition / f"{number // 1000:06d}" / f"{number:09d}.seg"

    def _bytes(self, partition: str, number: int, size: int = -1) -> bytes | None:
        incoming = self.path / "incoming" / f"{partition}-{number:012d}.seg"
        # A running pipeline may archive the file, or a restored one bring it back, between two looks.
        for path in (incoming, self._archived(partition, number), incoming):
            try:
                with path.open("rb") as file:
                    return file.read(size)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise LogError(f"{path} cannot be read: {error.strerror}") from error
        return None


def _header(data: bytes, name: str) -> tuple[dict[str, Any], int]:
    end = data.find(b"\n", 0, HEADER_BYTES_MAX)
    try:
        value = read(data[len(MAGIC) : end]) if data.startswith(MAGIC) and end > 0 else None
    except NotJsonError:
        value = None
    if not isinstance(value, dict):
        raise SegmentDamaged(f"{name} is damaged: it has no header")
    plain = {
        key: int(item.text) if isinstance(item, Number) and item.text.lstrip("-").isdigit() else item
        for key, item in value.items()
    }
    sealed = SEALED.fullmatch(data, 0, end)
    is_whole = zlib.crc32(sealed[1]) == int(sealed[2]) if sealed else set(plain) == EARLIER_FIELDS
    if not is_whole:
        raise SegmentDamaged(f"{name} is damaged: its header is not what was written")
    return plain, end + 1
