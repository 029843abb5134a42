"""What the recount finds of each batch, and the troubles that it meets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opentab.audit.clock import Lapse


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the log after a batch."""

    number: int  # of the last segment or message
    arrived_us: int
    idle: bool


@dataclass(slots=True)
class BatchFacts:
    """What one batch took from the log, counted again."""

    lines: int = 0
    events: int = 0
    amount_micros: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    without_id: int = 0  # of its events; not counted where dedupe is off
    latest_us: dict[str, int] = field(default_factory=dict)  # by partition, of its own events and duplicates
    arrived_us: dict[str, int] = field(default_factory=dict)  # by partition, the latest arrival


@dataclass(slots=True)
class Recomputed:
    """The recount: facts by batch, and troubles with the log.

    The sums and the refused lines are in DuckDB, tables `recounted` and `refused`; the events with an id in
    `keyed`, and which of them did not count in `uncounted`.
    """

    facts: dict[int, BatchFacts] = field(default_factory=dict)
    partitions: dict[int, dict[str, Partition]] = field(default_factory=dict)  # after each batch
    forgotten_us: dict[int, int | None] = field(default_factory=dict)  # after each batch
    lapses: dict[int, tuple[Lapse, ...]] = field(default_factory=dict)  # restarts of the clock, up to each batch
    troubles: list[tuple[int, str]] = field(default_factory=list)  # batch, what is wrong
    numbers: int = 0  # of segments or messages
    unchecked: int = 0  # segments of earlier versions, whose headers have no checksum
