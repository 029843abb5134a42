"""The log's files as bytes: found, checked against their own header, and nothing else."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentab.audit.wire import NotJsonError, Number, read
from opentab.errors import LogError, SegmentDamaged

MAGIC = b"opentab-segment 1 "
HEADER_BYTES_MAX = 4096
INCOMING_NAME = re.compile(r"(.+)-([0-9]{12})\.seg")


@dataclass(frozen=True, slots=True)
class RawSegment:
    """One segment: when it arrived, its lines as they came, and where in the file they begin."""

    partition: str
    number: int
    arrived_us: int
    body: bytes
    body_at: int


class RawLog:
    """A log directory, read only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, partition: str, number: int) -> RawSegment:
        """The whole segment, checked; raises LogError where it is gone and SegmentDamaged where not whole."""
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
        return RawSegment(partition, number, header["arrived_us"], body, body_at)

    def arrived_us(self, partition: str, number: int) -> int | None:
        """When a segment arrived; None if it is not there or has no header."""
        data = self._bytes(partition, number, HEADER_BYTES_MAX)
        try:
            arrived_us = None if data is None else _header(data, "")[0].get("arrived_us")
        except SegmentDamaged:
            return None
        return arrived_us if isinstance(arrived_us, int) else None

    def waiting(self, positions: dict[str, int]) -> list[tuple[str, int]]:
        """The segments behind `positions`, which no batch has taken."""
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
        return sorted(found)

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
    return plain, end + 1
