"""What a replica remembers of a period beside its totals: how many customers, and what was invoiced when."""

from __future__ import annotations

import duckdb
import msgspec

from opentab.core.periods import Period
from opentab.replica.store import Snapshot

ISSUED = """
    select count(*) filter (revision = 1), count(*) filter (revision > 1), coalesce(sum(delta), 0),
        epoch_us(min(issued_at)), min(position), epoch_us(max(issued_at) filter (revision > 1))
    from (
        select revision, any_value(issued_at) as issued_at, any_value(position) as position,
            any_value(total_minor) - coalesce(any_value(previous_total_minor), 0) as delta
        from invoices group by customer, revision
    )
"""


class PeriodStatistics(msgspec.Struct, frozen=True):
    """One period."""

    customers: int = 0
    invoices: int = 0  # customers that have one
    revisions: int = 0  # issued beyond the first of each customer
    invoiced_minor: str = "0"  # the latest of each; a text, for it may be wide
    closed_us: int | None = None
    closed_position: int | None = None
    revised_us: int | None = None
    adjusted_micros: str = "0"  # of earlier periods, billed in this one; a text, for it may be wide
    adjusted_events: int = 0

    def __add__(self, other: PeriodStatistics) -> PeriodStatistics:
        """Both together; the other one is the later."""
        first = self if self.closed_us is not None else other
        return PeriodStatistics(
            customers=self.customers + other.customers,
            invoices=self.invoices + other.invoices,
            revisions=self.revisions + other.revisions,
            invoiced_minor=str(int(self.invoiced_minor) + int(other.invoiced_minor)),
            closed_us=first.closed_us,
            closed_position=first.closed_position,
            revised_us=other.revised_us if other.revised_us is not None else self.revised_us,
            adjusted_micros=str(int(self.adjusted_micros) + int(other.adjusted_micros)),
            adjusted_events=self.adjusted_events + other.adjusted_events,
        )


def statistics_of(snapshot: Snapshot, period: Period) -> PeriodStatistics:
    """What is known of a period."""
    known = snapshot.get("facts", period.encode())
    return msgspec.json.decode(known, type=PeriodStatistics) if known else PeriodStatistics()


def issued(connection: duckdb.DuckDBPyConnection) -> PeriodStatistics:
    """What the view `invoices`, some invoices of one period issued at one position, adds."""
    ((count, revisions, minor, at_us, position, revised_us),) = connection.execute(ISSUED).fetchall()
    return PeriodStatistics(0, count, revisions, str(int(minor)), at_us, position, revised_us)
