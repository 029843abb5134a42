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


class Chunk(Protocol):
    """Lines as they came, the arrival time of each, and where each stands in the log."""

    @property
    def partition(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
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
    def position(self, index: int) -> int:
        """Where the journal stands in the partition once it holds this line."""
        ...

    def trusting(self, restarts: Sequence[ClockRestart]) -> Chunk:
        """The same lines with the arrival that they are taken for after restarts of the clock."""
        ...


class SegmentChunk:
    """A segment of a directory: its lines arrived together."""

    def __init__(self, segment: Segment) -> None:
        self.partition = segment.header.partition
        self.first = self.last = segment.header.number
        self.lines = Texts.of_lines(segment.body)
        self.arrived_us = np.full(len(self.lines), segment.header.arrived_us, np.int64)
        self.bytes = segment.header.bytes
        self._body_at = segment.body_at

    @property
    def numbers(self) -> Int64s:
        """The segment's number, for each line."""
        return np.full(len(self.lines), self.first, np.int64)

    @property
    def bytes_at(self) -> Int64s:
        """Where each line begins."""
        return self._body_at + self.lines.start

    def place(self, index: int) -> str:
        """The segment's number and the byte at which the line begins."""
        return f"{self.partition}/{self.first}@{self.bytes_at[index]}"

    def position(self, index: int) -> int:
        return self.first

    def trusting(self, restarts: Sequence[ClockRestart]) -> SegmentChunk:
        self.arrived_us = trusted_stamps(self.arrived_us, restarts, self.partition, self.numbers)
        return self


@dataclass(frozen=True)
class MessageChunk:
    """Messages of one partition of a Kafka topic, in the order of their offsets."""

    partition: str
    offsets: Int64s
    lines: Texts
    arrived_us: Int64s

    @property
    def first(self) -> int:
        return int(self.offsets[0]) + 1

    @property
    def last(self) -> int:
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

    def position(self, index: int) -> int:
        return int(self.offsets[index]) + 1

    def trusting(self, restarts: Sequence[ClockRestart]) -> MessageChunk:
        return replace(self, arrived_us=trusted_stamps(self.arrived_us, restarts, self.partition, self.offsets + 1))
