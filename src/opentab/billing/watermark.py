"""The watermark: the event time up to which the log is believed complete.

It follows from what the journal and the log hold, never from a clock, so a replay decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentab.core.events import UNBOUNDED_US, Rules
from opentab.core.periods import INSTANT_MIN_US
from opentab.core.records import BatchRecord, PartitionState


def partitions_after(
    before: Mapping[str, PartitionState],
    taken: Mapping[str, PartitionState],
    *,
    rules: Rules,
    has_unread: Callable[[str, int, int], bool],
) -> dict[str, PartitionState]:
    """The state of every partition after a batch that took `taken` from some of them.

    A partition that is read to its end, and whose last segment arrived long before the newest
    segment of the log, is idle: it holds no other back. Unread data is never idle.
    """
    states = {**before}
    for name, state in taken.items():
        known = [us for us in (state.latest_us, _latest(before.get(name))) if us is not None]
        states[name] = PartitionState(state.segment, max(known, default=None), state.arrived_us, idle=False)
    newest_arrival_us = max((state.arrived_us for state in states.values()), default=0)
    return {
        name: PartitionState(
            state.segment,
            state.latest_us,
            state.arrived_us,
            idle=newest_arrival_us - state.arrived_us > rules.idle_after_us
            and not has_unread(name, state.segment, newest_arrival_us),
        )
        for name, state in sorted(states.items())
    }


def watermark_after(
    before: BatchRecord | None,
    partitions: Mapping[str, PartitionState],
    rules: Rules,
    *,
    clock_us: int | None = None,
) -> int | None:
    """W(N): the least of the partitions that count, and never less than it was.

    `clock_us` is the time of day where that moves the watermark of a silent log.
    """
    counting = [
        max(state.latest_us - rules.out_of_orderness_us, INSTANT_MIN_US)
        for state in partitions.values()
        if state.latest_us is not None and not state.idle
    ]
    known = [min(counting)] if counting else []
    if before is not None and before.watermark_us is not None:
        known.append(before.watermark_us)
    if clock_us is not None:
        known.append(clock_us - rules.out_of_orderness_us)
    return max(known, default=None)


def final_after(before: BatchRecord | None, watermark_us: int | None, rules: Rules) -> int | None:
    """The instant up to which periods are final: it never falls, also if more lateness is allowed later."""
    known = [] if watermark_us is None else [watermark_us - rules.allowed_lateness_us]
    if before is not None and before.final_us is not None:
        known.append(before.final_us)
    return max(known, default=None)


def forgotten_after(before: BatchRecord | None, partitions: Mapping[str, PartitionState], rules: Rules) -> int | None:
    """The arrival time before which ids are not known any more: it never falls, also if the window grows later.

    A partition that is not read to its end may hold repeats of what came long ago elsewhere, so the least one decides.
    """
    known = [before.forgotten_us] if before is not None and before.forgotten_us is not None else []
    arrivals = [state.arrived_us for state in partitions.values() if not state.idle]
    if not rules.dedupe_us:
        known.append(max((state.arrived_us for state in partitions.values()), default=-1) + 1)
    elif rules.dedupe_us < UNBOUNDED_US and arrivals:
        known.append(min(arrivals) - rules.dedupe_us)
    return max(known, default=None)


def newest_after(before: BatchRecord | None, partitions: Mapping[str, PartitionState]) -> int | None:
    """The newest event time that has counted; its period is the current one. A move to another log keeps it."""
    known = [state.latest_us for state in partitions.values() if state.latest_us is not None]
    if before is not None and before.newest_us is not None:
        known.append(before.newest_us)
    return max(known, default=None)


def _latest(state: PartitionState | None) -> int | None:
    return None if state is None else state.latest_us
