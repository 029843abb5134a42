"""Rows of the journal and of the balances as plain columns, each with the period that it is billed in.

SQL is the way to ask the ledger a question; columns are the way to go through all of it quickly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from opentab.core.errors import TotalTooLarge
from opentab.core.periods import Calendar, month_number
from opentab.core.records import BatchRecord
from opentab.ledger.billed_in import billed_months, months_of_days
from opentab.ledger.journal import Journal

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ENTRY_COLUMNS = ["batch", "day", "customer", "type", "amount_micros", "event_count", "last_at"]
BALANCE_COLUMNS = ["batch", "period", "day", "customer", "type", "sum_micros", "event_count", "last_at"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows: what was used by whom on which day, and the month it is billed in."""

    customer: pa.Array
    type: pa.DictionaryArray
    batch: Ints
    day: Ints
    own_month: Ints
    month: Ints  # as periods.month_number counts; another than the own one is an adjustment
    micros: Ints
    events: Ints
    last_us: Ints

    def __len__(self) -> int:
        return len(self.day)

    def where(self, mask: Mask) -> Rows:
        """Those rows alone."""
        if mask.all():
            return self
        kept = pa.array(mask)
        numbers = {name: getattr(self, name)[mask] for name in NUMBERS}
        return Rows(self.customer.filter(kept), self.type.filter(kept), **numbers)


MICROS_MAX = 2**63 - 1
NUMBERS = ("batch", "day", "own_month", "month", "micros", "events", "last_us")


def journal_rows(
    journal: Journal, calendar: Calendar, records: Sequence[BatchRecord], *, after: int, rows_max: int
) -> Iterator[Rows]:
    """The entries behind `after`, up to the last of the records, in pieces of about `rows_max` rows.

    The records begin with that of batch `after`, which decides about the batch behind it; with the first
    one where `after` is 0.
    """
    upto = records[-1].batch if records else 0
    for table in _pieces(journal.entries(after=after, upto=upto, encoded=["type"]), ENTRY_COLUMNS, rows_max):
        batch, day = _numbers(table["batch"]), _numbers(table["day"].cast(pa.int32()))
        own_month = months_of_days(day)
        yield Rows(
            customer=_whole(table["customer"]),
            type=_whole(table["type"].unify_dictionaries()),
            batch=batch,
            day=day,
            own_month=own_month,
            month=billed_months(own_month, batch, records, calendar),
            micros=_numbers(table["amount_micros"]),
            events=_numbers(table["event_count"]),
            last_us=_numbers(table["last_at"].cast(pa.int64())),
        )


def balance_rows(balances: ds.Dataset, *, rows_max: int) -> Iterator[Rows]:
    """The rows of a snapshot of the balances, in pieces of about `rows_max` rows."""
    for table in _pieces(balances, BALANCE_COLUMNS, rows_max):
        day = _numbers(table["day"].cast(pa.int32()))
        period = _whole(table["period"]).dictionary_encode()
        months = np.array([month_number(name) for name in period.dictionary.to_pylist()], np.int64)
        yield Rows(
            customer=_whole(table["customer"]),
            type=_whole(table["type"]).dictionary_encode(),
            batch=_numbers(table["batch"]),
            day=day,
            own_month=months_of_days(day),
            month=months[period.indices.to_numpy()],
            micros=_micros(table),
            events=_numbers(table["event_count"]),
            last_us=_numbers(table["last_at"].cast(pa.int64())),
        )


def _pieces(dataset: ds.Dataset, columns: list[str], rows_max: int) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in dataset.scanner(columns=columns, use_threads=False, batch_size=min(rows_max, 131_072)).to_batches():
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= rows_max:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _micros(balances: pa.Table) -> Any:
    try:
        return _numbers(balances["sum_micros"])
    except pa.ArrowInvalid:
        too_large = pc.greater(
            pc.abs(balances["sum_micros"]), pa.scalar(MICROS_MAX, balances.schema.field("sum_micros").type)
        )
        raise TotalTooLarge(balances["period"].filter(too_large)[0].as_py()) from None


def _numbers(column: pa.ChunkedArray) -> Any:
    return pc.cast(column, pa.int64()).to_numpy()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
