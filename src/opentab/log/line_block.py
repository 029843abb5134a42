"""Some lines of one partition of the log, on their way through a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from opentab.core.periods import Int64s
from opentab.core.records import ClockRestart
from opentab.log.arrivals import trusted_stamps
from opentab.log.segment import Segment
from opentab.wire.byte_columns import Texts


class LineBlock(Protocol):
    """Lines as they came, the arrival time of each, and where each stands in the log."""

    @property
    def partition(self) -> str: ...
    @property
    def begin(self) -> int:
        """The offset of the first line."""
        ...

    @property
    def end(self) -> int:
        """The offset that the line after the last one has."""
        ...

    @property
    def lines(self) -> Texts: ...
    @property
    def arrived_us(self) -> Int64s: ...
    @property
    def numbers(self) -> Int64s: ...
    @property
    def bytes_at(self) -> Int64s: ...
    @property
    def bytes(self) -> int: ...
    def place(self, index: int) -> str: ...
    def offset(self, index: int) -> int:
        """The offset of a line: of all lines of a segment the same, the segment's number less one."""
        ...

    def trusting(self, restarts: Sequence[ClockRestart]) -> LineBlock:
        """The same lines with the arrival that they are taken for after restarts of the clock."""
        ...


class SegmentLines:
    """A segment of a directory: its lines arrived together."""

    def __init__(self, segment: Segment) -> None:
        self.partition = segment.header.partition
        self.begin, self.end = segment.header.number - 1, segment.header.number
        self.lines = Texts.of_lines(segment.body)
        self.arrived_us = np.full(len(self.lines), segment.header.arrived_us, np.int64)
        self.bytes = segment.header.bytes
        self._body_at = segment.body_at

    @property
    def numbers(self) -> Int64s:
        """The segment's number, for each line."""
        return np.full(len(self.lines), self.end, np.int64)

    @property
    def bytes_at(self) -> Int64s:
        """Where each line begins."""
        return self._body_at + self.lines.start

    def place(self, index: int) -> str:
        """The segment's number and the byte at which the line begins."""
        return f"{self.partition}/{self.end}@{self.bytes_at[index]}"

    def offset(self, index: int) -> int:
        return self.begin

    def trusting(self, restarts: Sequence[ClockRestart]) -> SegmentLines:
        self.arrived_us = trusted_stamps(self.arrived_us, restarts, self.partition, np.int64(self.begin))
        return self


@dataclass(frozen=True)
class MessageLines:
    """Messages of one partition of a Kafka topic, in the order of their offsets."""

    partition: str
    offsets: Int64s
    lines: Texts
    arrived_us: Int64s

    @property
    def begin(self) -> int:
        return int(self.offsets[0])

    @property
    def end(self) -> int:
        return int(self.offsets[-1]) + 1

    @property
    def numbers(self) -> Int64s:
        """The offset of each message."""
        return self.offsets

    @property
    def bytes_at(self) -> Int64s:
        return np.zeros(len(self.lines), np.int64)

    @property
    def bytes(self) -> int:
        return int(self.lines.size.sum())

    def place(self, index: int) -> str:
        """The partition and the message's offset."""
        return f"{self.partition}/{self.offsets[index]}"

    def offset(self, index: int) -> int:
        return int(self.offsets[index])

    def trusting(self, restarts: Sequence[ClockRestart]) -> MessageLines:
        return replace(self, arrived_us=trusted_stamps(self.arrived_us, restarts, self.partition, self.offsets))
