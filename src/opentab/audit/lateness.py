"""In which month an entry is billed: its own, or as an adjustment the one that the watermark is in."""

from __future__ import annotations

from dataclasses import dataclass

from opentab.audit.days import Days


@dataclass(frozen=True, slots=True)
class Mark:
    """How far time had come after a batch: the watermark, and the instant up to which months are final."""

    watermark_us: int | None = None
    final_us: int | None = None


def billed_month(own_month: int, *, before: Mark, days: Days) -> int:
    """The month that an entry is billed in, by what was known after the batch before its own."""
    if before.watermark_us is None or before.final_us is None:
        return own_month
    if before.final_us < days.month_end_us(own_month):
        return own_month
    return days.month_at(before.watermark_us)
