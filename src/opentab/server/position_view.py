"""What a replica knows at one position apart from anyone's totals: made once a position, not once a question."""

from __future__ import annotations

import msgspec

from opentab.core.periods import Calendar, Period, format_us
from opentab.core.records import BatchRecord
from opentab.ledger.billed_in import status_of
from opentab.ledger.totals import place_at
from opentab.replica.store import Snapshot


class Moment:
    """A position: its batch, the current period, and where each period stands."""

    def __init__(self, snapshot: Snapshot, calendar: Calendar) -> None:
        meta = self.meta = snapshot.meta()
        self.calendar = calendar
        # All periods that anything is billed in.
        self.periods: list[Period] = [key.decode() for key, _ in snapshot.scan("periods", b"")]
        text = meta.record if meta else None
        self.record: BatchRecord | None = msgspec.json.decode(text, type=BatchRecord) if text else None
        self.place = place_at(self.record)
        self.watermark = self.place.watermark
        self.as_of = format_us(self.record.committed_us) if self.record else None
        self.current_period: Period | None = None
        if self.record is not None and self.record.newest_us is not None:
            self.current_period = calendar.period_of(self.record.newest_us)
        self.cold_upto: Period = meta.cold_upto if meta else ""
        # The columns of a customer's row, in the order in which types are shown.
        self.columns = sorted((type_, column) for column, type_ in enumerate(meta.types if meta else (), start=1))
        self._statuses: dict[Period, str] = {}

    def status(self, period: Period) -> str:
        """open, closed or final."""
        known = self._statuses.get(period)
        if known is None:
            known = self._statuses[period] = status_of(period, self.record, self.calendar)
        return known
