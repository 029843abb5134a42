"""Restarts of the arrival clock, as the batches record them, and what they make of arrivals (ADR 20)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from opentab.audit.raw import RawLines
from opentab.core.records import BatchRecord, ClockRestart


class Lapse(NamedTuple):
    """A restart, and what was forgotten just before it."""

    batch: int
    at_us: int
    remembers_from: int
    forgotten_us: int | None


def own_restart(record: BatchRecord) -> ClockRestart | None:
    """The restart that a batch itself is."""
    return next((one for one in record.restarts if one.batch == record.batch), None)


def restarts_so_far(batches: Sequence[BatchRecord]) -> dict[int, list[ClockRestart]]:
    """By batch, the restarts up to it: each taken from the batch that made it."""
    by_batch: dict[int, list[ClockRestart]] = {}
    found: list[ClockRestart] = []
    for record in batches:
        if record.adopted == "beginning":  # of another log, where these numbers mean nothing
            found = [structs.replace(one, upto={}) for one in found]
        own = own_restart(record)
        found = found if own is None else [*found, own]
        by_batch[record.batch] = found
    return by_batch


def arrival(stamp_us: int, restarts: Sequence[ClockRestart], partition: str, number: int) -> int:
    """When a line counts as arrived: what a restart found in the log arrived before it."""
    for one in restarts:
        if partition in one.upto and number <= one.upto[partition] and stamp_us > one.at_us:
            stamp_us = one.at_us
    return stamp_us


def lines_arrived(raw: RawLines, restarts: Sequence[ClockRestart], base: int) -> RawLines:
    """The same lines with the arrivals that they count with; numbers of batches are greater by `base`."""
    if not restarts or not raw.arrived_us.size:
        return raw
    numbers = raw.numbers + base
    arrived_us = raw.arrived_us.copy()
    for one in restarts:
        late = (numbers <= one.upto.get(raw.partition, -1)) & (arrived_us > one.at_us)
        arrived_us[late] = one.at_us
    return replace(raw, arrived_us=arrived_us.astype(np.int64))


def recalled_us(arrived_us: int, batch: int, lapses: Sequence[Lapse]) -> int | None:
    """The arrival that an event of a batch is remembered with after restarts; None if one found it forgotten."""
    for one in lapses:
        if batch >= one.batch:
            continue
        forgotten = one.forgotten_us is not None and arrived_us < one.forgotten_us
        if forgotten and batch < one.remembers_from:
            return None
        arrived_us = min(arrived_us, one.at_us)
    return arrived_us


def remembered_sql(lapses: Sequence[Lapse], forgotten_us: int | None) -> str:
    """The same as a condition in SQL over the columns `batch` and `arrived_us`, after the last batch."""
    arrived = "arrived_us"
    conditions = ["true"]
    for one in lapses:
        if one.forgotten_us is not None:
            spared = f"batch >= {min(one.remembers_from, one.batch)}"
            conditions.append(f"({spared} OR {arrived} >= {one.forgotten_us})")
        arrived = f"(CASE WHEN batch < {one.batch} THEN least({arrived}, {one.at_us}) ELSE {arrived} END)"
    if forgotten_us is not None:
        conditions.append(f"{arrived} >= {forgotten_us}")
    return " AND ".join(conditions)
