"""After which batches a month's invoices are due: the audit's own reading of the rule.

A month closes with the batch that brings the watermark to its end. From then on, until it is final, it
is looked at again whenever the watermark has passed another step beyond its end, with the batch that
makes it final, and at the end of a `run --once`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from opentab.audit.lateness import Mark
from opentab.audit.recompute import days_in
from opentab.core.records import BatchRecord


def due_positions(
    batches: Sequence[BatchRecord], marks: Mapping[int, Mark], months: Iterable[int]
) -> dict[int, list[int]]:
    """By month, the batches after which invoices are due, in order."""
    months = set(months)
    due: dict[int, list[int]] = {month: [] for month in months}
    ends: dict[str, list[tuple[int, int]]] = {}  # by zone: (end, month) in order of time
    for record in batches:
        after = marks[record.batch]
        if after.watermark_us is None:
            continue
        before = marks.get(record.batch - 1, Mark())
        zone = record.rules.zone
        if zone not in ends:
            ends[zone] = sorted((days_in(zone).month_end_us(month), month) for month in months)
        # What was final before stays as it is; what ends later is open still.
        first = 0 if before.final_us is None else _count_upto(ends[zone], before.final_us)
        for end_us, month in ends[zone][first : _count_upto(ends[zone], after.watermark_us)]:
            if _is_due(end_us, before, after, record):
                due[month].append(record.batch)
    return due


def _is_due(end_us: int, before: Mark, after: Mark, record: BatchRecord) -> bool:
    """Whether a month that was not final before, and ends by the watermark after, is due."""
    if before.watermark_us is None or before.watermark_us < end_us:
        return True  # it closes
    if record.revise or (after.final_us is not None and end_us <= after.final_us):
        return True
    step_us = record.rules.revision_step_us
    if step_us == 0 or after.watermark_us is None:
        return step_us == 0
    return (after.watermark_us - end_us) // step_us > (before.watermark_us - end_us) // step_us


def _count_upto(ends: Sequence[tuple[int, int]], at_us: int) -> int:
    return bisect_right(ends, at_us, key=lambda item: item[0])
