"""How far each partition of the log had come after each batch, and which ids are forgotten by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from opentab.audit.clock import Lapse, arrival, own_restart, restarts_so_far
from opentab.audit.facts import BatchFacts, Partition
from opentab.audit.logs import Logs
from opentab.core.events import UNBOUNDED_US
from opentab.core.records import BatchRecord


def partitions_after(
    batches: Sequence[BatchRecord], facts: Mapping[int, BatchFacts], logs: Logs
) -> dict[int, dict[str, Partition]]:
    """The partitions after each batch, from what arrived when. Where the log is gone, the journal's word is taken."""
    after: dict[int, dict[str, Partition]] = {}
    partitions: dict[str, Partition] = {}
    restarts = restarts_so_far(batches)
    stamp_from = cache(lambda log, name, number: log.stamp_from(name, number))
    for record in batches:
        log = logs.of(record.batch)
        if record.adopted == "beginning":  # of another log
            partitions = {}
        found = facts[record.batch].arrived_us
        if log is None:
            partitions = {n: Partition(s.segment, s.arrived_us, s.idle) for n, s in record.partitions.items()}
            after[record.batch] = dict(partitions)
            continue
        own = own_restart(record)
        if own is not None:
            for name, p in partitions.items():
                partitions[name] = Partition(p.number, min(p.arrived_us, own.at_us), p.idle)
        for name, (_, last) in record.taken.items():
            old_us = partitions[name].arrived_us if name in partitions else 0
            partitions[name] = Partition(last, found.get(name, old_us), idle=False)
        # The latest of the partitions' last arrivals is the log's own clock.
        now_us = max((partition.arrived_us for partition in partitions.values()), default=0)
        for name, partition in partitions.items():
            idle = now_us - partition.arrived_us > record.rules.idle_after_us
            following = stamp_from(log, name, partition.number + 1) if idle else None
            if following is not None:
                number, stamp_us = following
                idle = arrival(stamp_us, restarts[record.batch], name, number) > now_us
                if not idle and now_us > record.committed_us and name in record.partitions:
                    # The log's clock was ahead of the pipeline's, so what is stamped earlier may have come later. Only
                    # the pipeline has seen whether it was there.
                    idle = record.partitions[name].idle
            partitions[name] = Partition(partition.number, partition.arrived_us, idle)
        after[record.batch] = dict(partitions)
    return after


def recorded_forgotten(record: BatchRecord) -> int | None:
    """What a batch says itself. A window that never ends may be recorded as one that ended before all time."""
    recorded_us = record.forgotten_us
    return None if recorded_us is not None and recorded_us < -UNBOUNDED_US // 2 else recorded_us


def forgotten_after(
    batches: Sequence[BatchRecord], partitions: Mapping[int, Mapping[str, Partition]], logs: Logs
) -> dict[int, int | None]:
    """By batch, the arrival before which no id is known any more after it; None where nothing is forgotten."""
    after: dict[int, int | None] = {}
    forgotten_us: int | None = None
    for record in batches:
        if own_restart(record) is not None:
            forgotten_us = None
        known = [forgotten_us] if forgotten_us is not None else []
        states = partitions[record.batch].values()
        awake_us = [partition.arrived_us for partition in states if not partition.idle]
        if record.rules.dedupe_us == 0:
            # A version that knew no ids recorded nothing, and had nothing to forget.
            if states and not (forgotten_us is None and record.forgotten_us is None):
                known.append(max(partition.arrived_us for partition in states) + 1)
        elif record.rules.dedupe_us < UNBOUNDED_US and awake_us:
            known.append(min(awake_us) - record.rules.dedupe_us)
        forgotten_us = max(known, default=None) if logs.of(record.batch) is not None else recorded_forgotten(record)
        after[record.batch] = forgotten_us
    return after


def lapses_before(
    batches: Sequence[BatchRecord], forgotten_us: Mapping[int, int | None]
) -> dict[int, tuple[Lapse, ...]]:
    """By batch, the restarts before it, with what was forgotten then as the log says."""
    return {
        batch: tuple(
            Lapse(one.batch, one.at_us, one.remembers_from, forgotten_us.get(one.batch - 1)) for one in restarts
        )
        for batch, restarts in restarts_so_far(batches).items()
    }
