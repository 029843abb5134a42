"""What a batch's entries come to, compared with its record: no bill is made from entries that do not add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from opentab.core.errors import FileDamaged
from opentab.core.records import BatchRecord


class BatchSums(NamedTuple):
    """What the entries of one batch come to."""

    rows: int
    event_count: int
    sum_micros: int


def sums_of(entries: pa.Table) -> dict[int, BatchSums]:
    """What entries come to, by batch."""
    micros = entries["amount_micros"].cast(pa.decimal128(38, 0))  # a sum may leave 64 bits
    table = pa.table({"batch": entries["batch"], "events": entries["event_count"], "micros": micros})
    groups = table.group_by("batch").aggregate([([], "count_all"), ("events", "sum"), ("micros", "sum")])
    return {
        row["batch"]: BatchSums(row["count_all"], row["events_sum"], int(row["micros_sum"]))
        for row in groups.to_pylist()
    }


def check_batches(found: Mapping[int, BatchSums], records: Iterable[BatchRecord]) -> None:
    """Raise FileDamaged unless the entries of each batch are what its record says."""
    for record in records:
        own = found.get(record.batch, BatchSums(0, 0, 0))
        wanted = BatchSums(record.entry_rows, record.event_count, record.amount_micros)
        if own != wanted:
            raise FileDamaged(
                f"the entries of batch {record.batch} come to {_text(own)}, but its record says {_text(wanted)}",
                hint="restore the journal from a backup: nothing is billed from entries that do not add up",
            )


def _text(sums: BatchSums) -> str:
    return f"{sums.rows} rows, {sums.event_count} events, {sums.sum_micros} micros"
