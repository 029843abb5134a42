"""Ids that two tasks of one batch took: each task counted once, together they counted twice.

The first one stays, by arrival and place. Of the others, few as they are, the lines are read again; entries that take
them back are committed with the batch, and their task's run is written anew without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.ledger.files import StagedFile, read_parquet, stage
from opentab.ledger.seen import stage_run
from opentab.periods import Calendar
from opentab.pipeline.exact import Event, judge
from opentab.pipeline.source import Portion
from opentab.pipeline.task import Order, Report
from opentab.records import ENTRY, SEEN


@dataclass(frozen=True, slots=True)
class Repeats:
    """What the tasks counted too much, and the files that set it right."""

    events: list[Event] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)  # paths of runs that others take the place of
    files: list[StagedFile] = field(default_factory=list)

    @property
    def amount_micros(self) -> int:
        return sum(event.amount_micros for event in self.events)


def repeats_across(portion: Portion, reports: Sequence[Report], order: Order) -> Repeats | None:
    """What several tasks took of the same keys; None where entries cannot set it right.

    That is so where values differ, where something is reversed, or where the window ends in the midst of the batch.
    """
    runs = [file for report in reports for file in report.files if file.kind == "seen"]
    shared = _shared_words(order, runs)
    if not len(shared):
        return Repeats()
    tables = [read_parquet(order.journal / file.path) for file in runs]
    rows = pa.concat_tables(
        [
            table.filter(_is_shared(table, shared)).append_column("run", _numbers(table, shared, n))
            for n, table in enumerate(tables)
        ]
    )
    losers: list[dict[str, Any]] = []
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows.filter(pc.not_equal(rows["payload"], 0)).to_pylist():
        if order.forgotten_us is not None and row["arrived_us"] < order.forgotten_us:
            continue  # it is not known, not even to its repeats
        groups.setdefault((row["key_high"], row["key_low"]), []).append(row)
    # What counted elsewhere might have been a better reason to refuse them.
    if any(key in groups for report in reports for key in report.refused_reversals):
        return None
    latest_us = max(taken.arrived_us for report in reports for taken in report.taken.values())
    for group in groups.values():
        if len({row["run"] for row in group}) < 2:
            continue
        group.sort(key=lambda row: (row["arrived_us"], row["partition"], row["number"], row["byte"]))
        alike = len({row["payload"] for row in group}) == 1
        if not alike or latest_us - group[0]["arrived_us"] > order.rules.dedupe_us:
            return None
        losers += group[1:]
    return _set_right(portion, order, runs, tables, losers) if losers else Repeats()


def _set_right(
    portion: Portion, order: Order, runs: list[StagedFile], tables: list[pa.Table], losers: list[dict[str, Any]]
) -> Repeats | None:
    calendar = Calendar(order.rules.zone)
    events = []
    for row in losers:
        line = portion.line(row["partition"], row["number"], row["byte"])
        event = judge(line, arrived_us=row["arrived_us"], rules=order.rules, calendar=calendar)
        if not isinstance(event, Event) or event.reverses is not None:
            return None
        events.append(event)
    batches = (order.batch, order.batch)
    files = [stage(order.journal, "entry", _taken_back(events, order.batch), run=order.run, batches=batches)]
    dropped = set()
    for number, (file, table) in enumerate(zip(runs, tables, strict=True)):
        places = {(row["partition"], row["number"], row["byte"]) for row in losers if row["run"] == number}
        if places:
            dropped.add(file.path)
            kept = [place not in places for place in zip(*(table[name].to_pylist() for name in PLACE), strict=True)]
            rest = table.select(SEEN.names).cast(SEEN).filter(pa.array(kept))
            run = stage_run(order.journal, iter([rest]), run=order.run, batches=batches)
            files += [run] if run is not None else []
    return Repeats(events, dropped, files)


PLACE = ("partition", "number", "byte")


def _shared_words(order: Order, runs: Sequence[StagedFile]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first words of keys that are in more than one run."""
    if len(runs) < 2:
        return np.zeros(0, np.int64)
    words = [
        _distinct(read_parquet(order.journal / file.path, columns=["key_high"])["key_high"].to_numpy()) for file in runs
    ]
    joined = np.sort(np.concatenate(words), kind="stable")  # it merges what is in order already
    return _distinct(joined[1:][joined[1:] == joined[:-1]])


def _distinct(words: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Words that are in order, each once. np.unique would not see the order, and takes ten times as long."""
    begins = np.ones(len(words), np.bool_)
    begins[1:] = words[1:] != words[:-1]
    return words[begins]


def _is_shared(table: pa.Table, shared: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.ChunkedArray:
    return pc.is_in(table["key_high"], value_set=pa.array(shared))


def _numbers(table: pa.Table, shared: np.ndarray[tuple[int], np.dtype[np.int64]], number: int) -> pa.Array:
    count = pc.sum(_is_shared(table, shared)).as_py() or 0
    return pa.array(np.full(count, number, np.int64))


def _taken_back(events: Sequence[Event], batch: int) -> pa.Table:
    """Entries that take events back: they stand beside the one that counts, so nothing but the sums changes."""
    at_us = [event.at_us for event in events]
    columns = [
        [batch] * len(events),
        pa.array([event.day for event in events], pa.int32()).cast(pa.date32()),
        [event.customer for event in events],
        [event.type for event in events],
        [-event.amount_micros for event in events],
        [-1] * len(events),
        pa.array(at_us, pa.int64()).cast(ENTRY.field("first_at").type),
        pa.array(at_us, pa.int64()).cast(ENTRY.field("last_at").type),
    ]
    return pa.table(
        [pa.array(c, f.type) if isinstance(c, list) else c for c, f in zip(columns, ENTRY, strict=True)], schema=ENTRY
    )
