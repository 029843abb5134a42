"""How far each partition of the log had come after each batch, and which ids are forgotten by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from opentab.audit.facts import BatchFacts, Partition
from opentab.audit.raw import RawLog
from opentab.events import UNBOUNDED_US
from opentab.records import BatchRecord


def partitions_after(
    batches: Sequence[BatchRecord], facts: Mapping[int, BatchFacts], log: RawLog
) -> dict[int, dict[str, Partition]]:
    """The partitions after each batch, from what arrived when."""
    after: dict[int, dict[str, Partition]] = {}
    partitions: dict[str, Partition] = {}
    now_us: int | None = None  # the latest arrival so far: the log's own clock
    arrived_us = cache(log.arrived_us)
    for record in batches:
        found = facts[record.batch].arrived_us
        now_us = max([us for us in (now_us, *found.values()) if us is not None], default=None)
        for name, (_, last) in record.taken.items():
            old_us = partitions[name].arrived_us if name in partitions else 0
            partitions[name] = Partition(last, found.get(name, old_us), idle=False)
        for name, partition in partitions.items():
            silent = now_us is not None and now_us - partition.arrived_us > record.rules.idle_after_us
            following = arrived_us(name, partition.number + 1) if silent else None
            idle = silent and (following is None or (now_us is not None and following > now_us))
            partitions[name] = Partition(partition.number, partition.arrived_us, idle)
        after[record.batch] = dict(partitions)
    return after


def forgotten_after(
    batches: Sequence[BatchRecord], partitions: Mapping[int, Mapping[str, Partition]]
) -> dict[int, int | None]:
    """By batch, the arrival before which no id is known any more after it; None where nothing is forgotten."""
    after: dict[int, int | None] = {}
    forgotten_us: int | None = None
    for record in batches:
        known = [forgotten_us] if forgotten_us is not None else []
        states = partitions[record.batch].values()
        awake_us = [partition.arrived_us for partition in states if not partition.idle]
        if record.rules.dedupe_us == 0:
            # A version that knew no ids recorded nothing, and had nothing to forget.
            if states and not (forgotten_us is None and record.forgotten_us is None):
                known.append(max(partition.arrived_us for partition in states) + 1)
        elif record.rules.dedupe_us < UNBOUNDED_US and awake_us:
            known.append(min(awake_us) - record.rules.dedupe_us)
        forgotten_us = max(known, default=None)
        after[record.batch] = forgotten_us
    return after
