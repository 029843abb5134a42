"""Adds rows of the ledger to a replica: all tables in one pass over columns, without a loop over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from opentab.core.errors import ReplicaMismatch
from opentab.core.periods import Period, day_of_number, period_of_month
from opentab.core.records import BatchRecord
from opentab.ledger.billed_in import different, months_of_days
from opentab.ledger.rows import Ints, Rows
from opentab.ledger.sums import BatchSums, check_batches
from opentab.replica import blocks, row
from opentab.replica.name_order import Listed, Names, in_order
from opentab.replica.store import SEPARATOR, SUMMED, Change
from opentab.replica.top_customers import Tops, found_anew, take_in, too_few
from opentab.replica.wide import Cells, Sums, Words, are_narrow, micros_of, sum_micros

CUSTOMERS_AT_A_TIME = 12_500  # their rows fit into a processor's cache
ADJUSTED = 0  # the column of a customer's row that holds all adjustments


class Fold:
    """One step of a replica: what was added to each table, and what is to be remembered of it."""

    def __init__(self, change: Change, types: Sequence[str]) -> None:
        self._change = change
        self.types = list(types)  # new ones come at the end
        self.new_customers: Counter[Period] = Counter()
        self.adjusted: dict[Period, tuple[int, int]] = {}  # micros and events of earlier periods, by where billed
        self.sums: dict[str, tuple[int, int]] = dict.fromkeys(SUMMED, (0, 0))
        self.rows = 0

    def add(self, rows: Rows) -> None:
        """Add some rows to all tables."""
        if not len(rows):
            return
        self.rows += len(rows)
        type_at = self._types_of(rows.type)
        month, month_at = different(rows.month)
        self._add_sums(_summed(rows, (month, month_at), type_at, len(self.types)))
        self._add_customers(rows, list(map(period_of_month, month.tolist())), month_at, type_at)

    def _add_sums(self, few: _Few) -> None:
        """Add to the tables that are not by customer."""
        own_months, days, months = (different(numbers) for numbers in (few.own_month, few.day, few.month))
        self._add_small("types", few, _named(own_months, period_of_month), few.type_at)
        self._add_small("days", few, _named(days, lambda day: str(day_of_number(day))), few.type_at)
        self._add_small("periods", few, _named(months, period_of_month), None)
        self._count("customers", few.low, few.high, few.events)
        self._count_adjusted(few)

    def _add_customers(self, rows: Rows, months: Sequence[Period], month_at: Ints, type_at: Ints) -> None:
        ordered = in_order(rows.customer)
        by_month = ordered.split(month_at, len(months))
        adjusted = rows.month != rows.own_month
        column = np.where(adjusted, ADJUSTED, type_at + 1)
        # Side by side: what lies together is fetched at once.
        lines = np.stack([column, rows.low.view(np.int64), rows.events, rows.last_us], axis=1)
        high = None if are_narrow(rows.low, rows.high) else rows.high
        for period, own in zip(months, by_month, strict=True):
            self._add_period(period, own, lines, high)
        if adjusted.any():
            customer_at = np.empty(len(rows), np.int64)
            customer_at[ordered.rows] = ordered.name_at
            self._add_adjustments(rows, adjusted, ordered.names, months, month_at, customer_at, type_at)

    def _add_period(self, period: Period, own: Names, lines: Ints, high: Ints | None) -> None:
        """Add rows of one period, which come in the order of the customers; some thousand customers at a time."""
        edges = np.append(np.flatnonzero(own.begins), len(own.rows))
        totals: list[Cells] = []
        for start in range(0, len(own.names), CUSTOMERS_AT_A_TIME):
            here = own.names[start : start + CUSTOMERS_AT_A_TIME]
            first, past = edges[start], edges[start + len(here)]
            taken = own.rows[first:past]
            column, low, events, last_us = lines.take(taken, axis=0).T
            added = row.summed(
                1 + len(self.types),
                edges[start : start + len(here)] - first,
                column,
                low.view(np.uint64),
                None if high is None else high[taken],
                events,
                last_us,
            )
            now, new = blocks.add(self._change, period.encode(), here, added)
            self.new_customers[period] += new
            totals.append(now.totals())
        _keep_tops(self._change, period, Listed(own.names), np.concatenate(totals))

    def _add_adjustments(
        self, rows: Rows, adjusted: Ints, names: pa.Array, months: Sequence[Period], *at: Ints
    ) -> None:
        month_at, customer_at, type_at = (numbers[adjusted] for numbers in at)
        own, own_at = _named(different(rows.own_month[adjusted]), period_of_month)
        shape = (len(months), len(names), len(own), len(self.types))
        here, cell_at = np.unique(
            np.ravel_multi_index((month_at, customer_at, own_at, type_at), shape), return_inverse=True
        )
        keys = []
        for month, customer, own_month, type_ in np.stack(np.unravel_index(here, shape), axis=1).tolist():
            line = f"{SEPARATOR}{own[own_month]}{self.types[type_]}"
            keys.append(months[month].encode() + names[customer].as_py() + line.encode())
        sums = Sums(len(here))
        sums.add(cell_at, *(getattr(rows, name)[adjusted] for name in ("low", "high", "events", "last_us")))
        self._add_sorted("adjustments", keys, sums.cells())
        self._count("adjustments", rows.low[adjusted], rows.high[adjusted], rows.events[adjusted])

    def _count_adjusted(self, few: _Few) -> None:
        """What each period was billed of earlier ones: it is told also when its customers are left to the ledger."""
        adjusted = few.month != few.own_month
        for month in np.unique(few.month[adjusted]).tolist():
            here = adjusted & (few.month == month)
            micros, events = self.adjusted.get(period_of_month(month), (0, 0))
            more = sum_micros(few.low[here], few.high[here])
            self.adjusted[period_of_month(month)] = (micros + more, events + int(few.events[here].sum()))

    def _add_small(self, table: str, few: _Few, names: tuple[Sequence[str], Ints], type_at: Ints | None) -> None:
        """Add to a table with few keys: by a name, or by a name and a type."""
        texts, at = names
        types = [""] if type_at is None else self.types
        present, cell_at = _occurring(at if type_at is None else at * len(types) + type_at)
        sums = Sums(len(present))
        sums.add(cell_at, few.low, few.high, few.events, few.last_us)
        keys = [(texts[i // len(types)] + types[i % len(types)]).encode() for i in present.tolist()]
        self._add_sorted(table, keys, sums.cells())
        self._count(table, few.low, few.high, few.events)

    def _add_sorted(self, table: str, keys: list[bytes], added: Cells) -> None:
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._change.add(table, [keys[i] for i in order], added[order])

    def _count(self, table: str, low: Words, high: Ints, events: Ints) -> None:
        micros, count = self.sums[table]
        self.sums[table] = (micros + sum_micros(low, high), count + int(events.sum()))

    def _types_of(self, types: pa.DictionaryArray) -> Ints:
        names = types.dictionary.to_pylist()
        self.types += sorted(set(names) - set(self.types))
        columns = np.array([self.types.index(name) for name in names], np.int64)
        found: Ints = columns[types.indices.to_numpy()]
        return found


@dataclass(frozen=True, slots=True)
class _Few:
    """Rows summed by month, day and type, over all customers: many rows become few."""

    month: Ints
    own_month: Ints
    day: Ints
    type_at: Ints
    low: Words
    high: Ints
    events: Ints
    last_us: Ints


def _summed(rows: Rows, months: tuple[Ints, Ints], type_at: Ints, types: int) -> _Few:
    (month, month_at), (day, day_at) = months, different(rows.day)
    present, at = _occurring((month_at * len(day) + day_at) * types + type_at)
    sums = Sums(len(present))
    sums.add(at, rows.low, rows.high, rows.events, rows.last_us)
    cells = sums.cells()
    month_at, day_at, type_at = np.unravel_index(present, (len(month), len(day), types))
    own_month = months_of_days(day)[day_at]
    sums_of = cells["sum"]
    return _Few(
        month=month[month_at],
        own_month=own_month,
        day=day[day_at],
        type_at=type_at,
        low=sums_of["low"],
        high=sums_of["high"],
        events=sums_of["events"],
        last_us=cells["last_us"],
    )


class Tally:
    """What the entries of each batch come to, to be compared with its record."""

    def __init__(self, after: int, upto: int) -> None:
        self._after = after
        self._sums = Sums(upto - after)
        self._rows = np.zeros(upto - after, np.int64)

    def add(self, rows: Rows) -> None:
        at = rows.batch - self._after - 1
        self._sums.add(at, rows.low, rows.high, rows.events, rows.last_us)
        self._rows += np.bincount(at, minlength=len(self._rows))

    def check(self, records: Iterable[BatchRecord]) -> None:
        """Stop if a batch's entries are not what its record says."""
        found = zip(self._rows.tolist(), self._sums.cells()["sum"], strict=True)
        batches = enumerate(found, start=self._after + 1)
        check_batches(
            {batch: BatchSums(n, int(sums["events"]), micros_of(sums)) for batch, (n, sums) in batches}, records
        )


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


def _named(numbers: tuple[Ints, Ints], name: Callable[[int], str]) -> tuple[list[str], Ints]:
    """Different numbers by name, and for each number the place of its name."""
    different, at = numbers
    return list(map(name, different.tolist())), at


def _keep_tops(change: Change, period: Period, names: Listed, totals: Cells) -> None:
    """Take new totals into the tops of their period."""
    at = period.encode()
    known = change.get("tops", at)
    tops = msgspec.json.decode(known, type=Tops) if known else Tops(members={})
    take_in(tops, names, totals)
    if too_few(tops):
        tops = found_anew((name.decode(), micros) for name, micros in blocks.totals(change, at))
    change.put("tops", [(at, msgspec.json.encode(tops))])
