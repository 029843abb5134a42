"""Adds rows of the ledger to a replica: all tables in one pass over columns, without a loop over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from opentab.core.errors import ReplicaMismatch, TotalTooLarge
from opentab.core.periods import Period, day_of_number, period_of_month
from opentab.core.records import BatchRecord
from opentab.ledger.billed_in import different, months_of_days
from opentab.ledger.rows import Ints, Rows
from opentab.ledger.sums import BatchSums, check_batches
from opentab.replica import blocks, row
from opentab.replica.cell import Cell, cells_at
from opentab.replica.name_order import Names, in_order
from opentab.replica.store import SEPARATOR, SUMMED, Change
from opentab.replica.top_customers import TopCustomers, with_totals

CUSTOMERS_AT_A_TIME = 12_500  # their rows fit into a processor's cache
ADJUSTED = 0  # the column of a customer's row that holds all adjustments


class Fold:
    """One step of a replica: what was added to each table, and what is to be remembered of it."""

    def __init__(self, change: Change, types: Sequence[str]) -> None:
        self._change = change
        self.types = list(types)  # new ones come at the end
        self.new_customers: Counter[Period] = Counter()
        self.adjusted: dict[Period, Cell] = {}  # of earlier periods, by where billed
        self.sums: dict[str, tuple[int, int]] = dict.fromkeys(SUMMED, (0, 0))
        self.rows = 0

    def add(self, rows: Rows) -> None:
        """Add some rows to all tables."""
        if not len(rows):
            return
        self.rows += len(rows)
        type_at = self._types_of(rows.type)
        self._add_sums(rows, type_at)
        self._add_customers(rows, type_at)

    def _add_sums(self, rows: Rows, type_at: Ints) -> None:
        """Add to the tables that are not by customer."""
        tables: dict[str, dict[bytes, Cell]] = {"types": {}, "days": {}, "periods": {}}
        total = Cell()
        for month, own_month, day, type_, cell in _by_day(rows, type_at, len(self.types)):
            period, own, name = period_of_month(month), period_of_month(own_month), self.types[type_]
            for table, key in (("types", own + name), ("days", f"{day_of_number(day)}{name}"), ("periods", period)):
                known = tables[table].get(key.encode())
                tables[table][key.encode()] = known.plus(cell) if known else cell
            if period != own:
                # It is told also when the period's customers are left to the ledger.
                self.adjusted[period] = self.adjusted.get(period, Cell()).plus(cell)
            total = total.plus(cell)
        for table, cells in tables.items():
            self._change.add(table, cells)
        for table in (*tables, blocks.TABLE):
            self._count(table, total)

    def _add_customers(self, rows: Rows, type_at: Ints) -> None:
        ordered = in_order(rows.customer)
        month, month_at = different(rows.month)
        adjusted = rows.month != rows.own_month
        column = np.where(adjusted, ADJUSTED, type_at + 1)
        # Side by side: what lies together is fetched at once.
        lines = np.stack([column, rows.micros, rows.events, rows.last_us], axis=1)
        months = list(map(period_of_month, month.tolist()))
        for period, own in zip(months, ordered.split(month_at, len(months)), strict=True):
            try:
                self._add_period(period, own, lines)
            except OverflowError:
                raise TotalTooLarge(period) from None
        if adjusted.any():
            self._add_adjustments(rows, np.flatnonzero(adjusted), type_at)

    def _add_period(self, period: Period, own: Names, lines: Ints) -> None:
        """Add rows of one period, which come in the order of the customers; some thousand customers at a time."""
        edges = np.append(np.flatnonzero(own.begins), len(own.rows))
        totals: list[Ints] = []
        for start in range(0, len(own.names), CUSTOMERS_AT_A_TIME):
            here = own.names[start : start + CUSTOMERS_AT_A_TIME]
            first, past = edges[start], edges[start + len(here)]
            begins = edges[start : start + len(here)] - first
            column, micros, events, last_us = lines.take(own.rows[first:past], axis=0).T
            added = row.summed(1 + len(self.types), begins, column, micros, events, last_us)
            now, new = blocks.add(self._change, period.encode(), here, added)
            self.new_customers[period] += new
            totals.append(now.totals())
        _keep_top_customers(self._change, period, own.names, np.concatenate(totals))

    def _add_adjustments(self, rows: Rows, here: Ints, type_at: Ints) -> None:
        """Say what the adjustments of each customer are made of."""
        cells: dict[bytes, Cell] = {}
        customers = rows.customer.take(pa.array(here)).to_pylist()
        columns = (rows.month, rows.own_month, type_at, rows.micros, rows.events, rows.last_us)
        for customer, month, own_month, type_, *amounts in zip(
            customers, *(numbers[here].tolist() for numbers in columns), strict=True
        ):
            line = f"{period_of_month(month)}{customer}{SEPARATOR}{period_of_month(own_month)}{self.types[type_]}"
            cells[line.encode()] = cells.get(line.encode(), Cell()).plus(Cell(*amounts))
        self._change.add("adjustments", cells)
        for cell in cells.values():
            self._count("adjustments", cell)

    def _count(self, table: str, cell: Cell) -> None:
        micros, count = self.sums[table]
        self.sums[table] = (micros + cell.micros, count + cell.events)

    def _types_of(self, types: pa.DictionaryArray) -> Ints:
        names = types.dictionary.to_pylist()
        self.types += sorted(set(names) - set(self.types))
        columns = np.array([self.types.index(name) for name in names], np.int64)
        found: Ints = columns[types.indices.to_numpy()]
        return found


def _by_day(rows: Rows, type_at: Ints, types: int) -> Iterator[tuple[int, int, int, int, Cell]]:
    """Rows summed over all customers, by month, own month, day and type: many rows become few."""
    (month, month_at), (day, day_at) = different(rows.month), different(rows.day)
    present, at = _occurring((month_at * len(day) + day_at) * types + type_at)
    cells = cells_at(at, len(present), rows.micros, rows.events, rows.last_us)
    month_at, day_at, type_at = np.unravel_index(present, (len(month), len(day), types))
    own_month = months_of_days(day)[day_at]
    columns = (month[month_at], own_month, day[day_at], type_at)
    return zip(*(numbers.tolist() for numbers in columns), cells, strict=True)


class Tally:
    """What the entries of each batch come to, to be compared with its record."""

    def __init__(self, after: int, upto: int) -> None:
        self._after = after
        self._cells = [Cell()] * (upto - after)
        self._rows = np.zeros(upto - after, np.int64)

    def add(self, rows: Rows) -> None:
        at, count = rows.batch - self._after - 1, len(self._cells)
        cells = cells_at(at, count, rows.micros, rows.events, rows.last_us)
        self._cells = list(map(Cell.plus, self._cells, cells))
        self._rows += np.bincount(at, minlength=count)

    def check(self, records: Iterable[BatchRecord]) -> None:
        """Stop if a batch's entries are not what its record says."""
        found = enumerate(zip(self._rows.tolist(), self._cells, strict=True), start=self._after + 1)
        check_batches({batch: BatchSums(rows, cell.events, cell.micros) for batch, (rows, cell) in found}, records)


def check_all(fold: Fold, records: Sequence[BatchRecord]) -> None:
    """Stop if all that was folded is not what the records together say."""
    _compare(f"the ledger up to batch {records[-1].batch}", fold.sums["periods"], records)


def _compare(what: str, found: tuple[int, int], records: Sequence[BatchRecord]) -> None:
    wanted = (sum(record.amount_micros for record in records), sum(record.event_count for record in records))
    if found != wanted:
        raise ReplicaMismatch(
            f"{what} holds {found} micros and events, but the records say {wanted}",
            hint="the ledger is damaged: opentab verify says where",
        )


def _occurring(numbers: Ints) -> tuple[Ints, Ints]:
    """The different ones of some numbers in order, and for each its place among them. Memory follows the numbers."""
    if len(numbers) and int(numbers.max()) - int(numbers.min()) < len(numbers):
        return different(numbers)  # many times quicker, but it takes a cell for whatever might occur
    present, at = np.unique(numbers, return_inverse=True)
    return present, at


def _keep_top_customers(change: Change, period: Period, names: pa.Array, totals: Ints) -> None:
    """Take new totals into the tops of their period."""
    at = period.encode()
    known = change.get("tops", at)
    tops = msgspec.json.decode(known, type=TopCustomers) if known else TopCustomers(members={})
    everyone = ((name.decode(), micros) for name, micros in blocks.totals(change, at))
    tops = with_totals(tops, names, totals, everyone)
    change.put("tops", [(at, msgspec.json.encode(tops))])
