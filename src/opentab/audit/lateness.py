"""In which month an entry is billed: its own, or as an adjustment the one that the watermark is in."""

from __future__ import annotations

from opentab.audit.days import Days
from opentab.events import Rules


def billed_month(own_month: int, *, watermark_before_us: int | None, rules: Rules, days: Days) -> int:
    """The month that an entry is billed in, by the watermark of the batch before its own."""
    if watermark_before_us is None:
        return own_month
    if watermark_before_us < days.month_end_us(own_month) + rules.allowed_lateness_us:
        return own_month
    return days.month_at(watermark_before_us)
