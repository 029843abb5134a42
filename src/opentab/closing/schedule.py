"""Which invoices are due at which position, decided from the batch records alone.

At batch N a period that ends at E is

- closed, if W(N-1) < E <= W(N);
- revised, if it was closed before and was not final after N-1, and
    - it becomes final at N, or
    - W has passed another step beyond E since N-1, or
    - N ends a `run --once`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opentab.core.periods import Calendar, Period, next_period
from opentab.core.records import BatchRecord


@dataclass(frozen=True, slots=True)
class Round:
    """A position at which invoices may be due."""

    before: BatchRecord | None  # the batch in front of it
    record: BatchRecord

    @property
    def position(self) -> int:
        return self.record.batch

    def closes(self, end_us: int) -> bool:
        """Whether a period that ends then is closed here."""
        return self._reached(self.record, end_us) and not self._reached(self.before, end_us)

    def revises(self, end_us: int) -> bool:
        """Whether a closed period that ends then is revised here."""
        before, record = self.before, self.record
        if before is None or before.watermark_us is None or record.watermark_us is None or before.final_us is None:
            return False
        if not before.final_us < end_us <= before.watermark_us:
            return False
        step_us = record.rules.revision_step_us
        return (
            record.revise
            or (record.final_us is not None and end_us <= record.final_us)
            or step_us == 0
            or (record.watermark_us - end_us) // step_us > (before.watermark_us - end_us) // step_us
        )

    def due(self, end_us: int) -> bool:
        """Whether a period that ends then has invoices due here."""
        return self.closes(end_us) or self.revises(end_us)

    def may_matter(self, calendar: Calendar) -> bool:
        """Whether any month at all is due here. Most batches end here, without a look at the entries."""
        if self.record.watermark_us is None:
            return False
        if self.before is None or self.before.final_us is None:
            return True  # the first watermark closes all that lies before it
        return any(self.due(calendar.end_us(period)) for period in self._months(calendar, self.before.final_us))

    def _months(self, calendar: Calendar, from_us: int) -> Iterator[Period]:
        assert self.record.watermark_us is not None
        period, last = calendar.period_of(from_us), calendar.period_of(self.record.watermark_us)
        while period <= last:
            yield period
            if period == last:
                return
            period = next_period(period)

    @staticmethod
    def _reached(record: BatchRecord | None, end_us: int) -> bool:
        return record is not None and record.watermark_us is not None and end_us <= record.watermark_us


def rounds(records: Sequence[BatchRecord], calendar: Calendar) -> list[Round]:
    """The positions among `records` at which something may be due, in order.

    The first record is only looked back at, unless it is batch 1.
    """
    pairs = zip([None, *records], records, strict=False)
    all_rounds = [Round(before, record) for before, record in pairs if before is not None or record.batch == 1]
    return [round_ for round_ in all_rounds if round_.may_matter(calendar)]
