"""Events into entries: what some of them add to each (day, customer, type)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.core.records import ENTRY, with_dictionaries
from opentab.wire.decode import Decoded

INT64_MAX = 2**63 - 1
_ENTRY = with_dictionaries(ENTRY, ["type"])

# Of a sample's events, the share of different (day, customer, type) from which adding up saves nothing.
DISTINCT_SHARE_MAX = 0.95
SAMPLE_ROWS = 16_384


def tally(decoded: Sequence[Decoded], *, batch: int) -> pa.Table:
    """Add the events up by (day, customer, type); rows of the schema ENTRY, with types out of a dictionary.

    Where a sum might leave 64 bits, or nearly every event has a cell of its own, every event stays a
    row of its own: readers add.
    """
    events = _table(decoded)
    sample = events.slice(0, SAMPLE_ROWS)
    many = events.num_rows > SAMPLE_ROWS
    if not _sums_fit(decoded) or (many and _summed(sample).num_rows > DISTINCT_SHARE_MAX * SAMPLE_ROWS):
        return _entries(events, batch, amount="amount_micros", count=None, first="at_us", last="at_us")
    return _entries(
        _summed(events),
        batch,
        amount="amount_micros_sum",
        count="amount_micros_count",
        first="at_us_min",
        last="at_us_max",
    )


def _summed(events: pa.Table) -> pa.Table:
    return events.group_by(["day", "customer", "type"], use_threads=False).aggregate(
        [("amount_micros", "sum"), ("amount_micros", "count"), ("at_us", "min"), ("at_us", "max")]
    )


def exact_sum(amount_micros: Int64s) -> int:
    """The sum of amounts, however large."""
    # Halves of the words add up without overflow for any number of rows that fits in memory.
    high = int((amount_micros >> 32).sum())
    low = int((amount_micros & 0xFFFFFFFF).sum())
    return (high << 32) + low


def _table(decoded: Sequence[Decoded]) -> pa.Table:
    schema = pa.schema(
        [
            ("day", pa.int32()),
            ("customer", pa.string()),
            ("type", _ENTRY.field("type").type),
            ("amount_micros", pa.int64()),
            ("at_us", pa.int64()),
        ]
    )
    batches = [
        pa.record_batch(
            [
                pa.array(part.day.astype(np.int32)),
                part.customer,
                part.type,
                pa.array(part.amount_micros),
                pa.array(part.at_us),
            ],
            schema=schema,
        )
        for part in decoded
    ]
    return pa.Table.from_batches(batches, schema=schema)


def _sums_fit(decoded: Sequence[Decoded]) -> bool:
    largest = max((int(np.abs(p.amount_micros).max(initial=0)) for p in decoded), default=0)
    return largest * sum(len(p.amount_micros) for p in decoded) <= INT64_MAX


def _entries(table: pa.Table, batch: int, *, amount: str, count: str | None, first: str, last: str) -> pa.Table:
    rows = table.num_rows
    one = pa.array(np.ones(rows, np.int64)) if count is None else table[count]
    columns = [
        pa.array(np.full(rows, batch, np.int64)),
        table["day"].cast(pa.date32()),
        table["customer"],
        table["type"],
        table[amount],
        one,
        table[first].cast(ENTRY.field("first_at").type),
        table[last].cast(ENTRY.field("last_at").type),
    ]
    return pa.table(columns, schema=_ENTRY)
