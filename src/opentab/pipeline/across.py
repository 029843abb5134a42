"""Ids that two tasks of one batch took: each task counted once, together they counted twice.

The first one stays, by arrival and place. Of the others, few as they are, the lines are read again; entries that take
them back are committed with the batch, and their rows in their task's run say that they did not count. A run that
cannot be changed, in a bucket say, is written anew without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opentab.ledger.files import StagedFile, read_parquet, stage
from opentab.ledger.runs import StagedRun
from opentab.ledger.seen import stage_run
from opentab.periods import Calendar, Int64s
from opentab.pipeline.decode import Decoded, decode
from opentab.pipeline.source import Portion
from opentab.pipeline.tally import exact_sum, tally
from opentab.pipeline.task import Order, Report
from opentab.records import DID_NOT_COUNT, ENTRY, SEEN
from opentab.texts import Texts

Bools = npt.NDArray[np.bool_]

_BESIDE = ThreadPoolExecutor(2)  # for the life of the process: memory that nobody has used yet is dear


@dataclass(frozen=True, slots=True)
class Repeats:
    """What the tasks counted too much, and the files that set it right."""

    events: Decoded | None = None
    entry_rows: int = 0
    dropped: set[str] = field(default_factory=set)  # paths of runs that others take the place of
    files: list[StagedFile] = field(default_factory=list)

    @property
    def count(self) -> int:
        return 0 if self.events is None else len(self.events.at_us)

    @property
    def amount_micros(self) -> int:
        return 0 if self.events is None else exact_sum(self.events.amount_micros)

    def late(self, first_day: int | None) -> int:
        """How many of them are of a day before this one."""
        return 0 if self.events is None or first_day is None else int((self.events.day < first_day).sum())


@dataclass(frozen=True, slots=True)
class _Shared:
    """Rows of runs whose keys begin alike in more than one of them, in the order of keys, then of arrival and place."""

    high: Int64s
    low: Int64s
    payload: Int64s
    arrived_us: Int64s
    places: list[tuple[str, int, int]]  # partition, number, byte
    run: Int64s  # which run it is in
    row: Int64s  # and which row of it

    def __len__(self) -> int:
        return len(self.high)


def repeats_across(portion: Portion, reports: Sequence[Report], order: Order) -> Repeats | None:
    """What several tasks took of the same keys; None where entries cannot set it right.

    That is so where values differ, where something is reversed, or where the window ends in the midst of the batch.
    """
    files = [file for report in reports for file in report.files if file.kind == "seen"]
    if len(files) < 2:
        return Repeats()
    runs = list(_BESIDE.map(partial(StagedRun, order.journal), files))
    firsts = [run.first_words() for run in runs]
    words = _shared_words(firsts)
    if not len(words):
        return Repeats()
    rows = [_places_of(words, mine) for mine in firsts]
    shared = _shared(list(_BESIDE.map(StagedRun.rows, runs, rows)), rows, order.forgotten_us)
    if not len(shared):
        return Repeats()
    refused = {key for report in reports for key in report.refused_reversals}
    if refused and not refused.isdisjoint(zip(shared.high.tolist(), shared.low.tolist(), strict=True)):
        return None  # what counted elsewhere might have been a better reason to refuse them
    first = np.ones(len(shared), np.bool_)  # of its key
    first[1:] = (shared.high[1:] != shared.high[:-1]) | (shared.low[1:] != shared.low[:-1])
    starts, key = np.flatnonzero(first), np.cumsum(first) - 1
    several = _differ(shared.run, starts)
    latest_us = max(taken.arrived_us for report in reports for taken in report.taken.values())
    ends = latest_us - shared.arrived_us[starts] > order.rules.dedupe_us
    if (several & (_differ(shared.payload, starts) | ends)).any():
        return None
    losers = np.flatnonzero(~first & several[key])
    return _set_right(portion, order, runs, shared, losers) if len(losers) else Repeats()


def _differ(column: Int64s, starts: Int64s) -> Bools:
    """Which groups have more than one value; they begin at `starts`."""
    differ: Bools = np.minimum.reduceat(column, starts) != np.maximum.reduceat(column, starts)
    return differ


def _set_right(
    portion: Portion, order: Order, runs: list[StagedRun], shared: _Shared, losers: Int64s
) -> Repeats | None:
    lines = portion.lines([shared.places[at] for at in losers.tolist()])
    arrived_us = shared.arrived_us[losers]
    events = decode(Texts.of(lines), arrived_us=arrived_us, rules=order.rules, calendar=Calendar(order.rules.zone))
    if len(events.at_us) != len(lines) or (events.identity is not None and events.identity.reversals):
        return None
    numbers = np.unique(shared.run[losers]).tolist()
    changed = [runs[number] for number in numbers]
    gone = [losers[shared.run[losers] == number] for number in numbers]
    changing = _BESIDE.map(partial(_without, order, shared), changed, gone)  # meanwhile the entries are made
    entries = _taken_back(events, order.batch)
    files = [stage(order.journal, "entry", entries, run=order.run, batches=(order.batch, order.batch))]
    anew = list(changing)
    dropped = {run.file.path for run, file in zip(changed, anew, strict=True) if file is not run.file}
    files += [file for run, file in zip(changed, anew, strict=True) if file is not None and file is not run.file]
    return Repeats(events, entries.num_rows, dropped, files)


def _without(order: Order, shared: _Shared, run: StagedRun, gone: Int64s) -> StagedFile | None:
    """A run of which some rows say that they did not count; one without them, where it cannot be changed.

    None where it has no others.
    """
    rows = shared.row[gone]
    # A task's machine that is another one may have seen the run as it was.
    if order.tasks_are_here and run.erase(rows, shared.payload[gone]):
        return run.file
    table = read_parquet(order.journal / run.file.path).select(SEEN.names).cast(SEEN)
    kept = np.ones(table.num_rows, np.bool_)
    kept[rows] = False
    table = table.filter(pa.array(kept))
    return stage_run(order.journal, iter([table]), run=order.run, batches=(order.batch, order.batch))


def _shared(tables: Sequence[pa.Table], rows_of: Sequence[Int64s], forgotten_us: int | None) -> _Shared:
    """Those rows of each run that are asked for, without what was rejected or is forgotten."""
    found = []
    for number, (mine, row) in enumerate(zip(tables, rows_of, strict=True)):
        wanted = mine["payload"].to_numpy() != DID_NOT_COUNT
        if forgotten_us is not None:  # it is not known, not even to its repeats
            wanted &= mine["arrived_us"].to_numpy() >= forgotten_us
        told = mine.append_column("run", pa.array(np.full(len(row), number))).append_column("row", pa.array(row))
        found.append(told.filter(pa.array(wanted)))
    rows = pa.concat_tables(found)
    names = rows["partition"].combine_chunks().dictionary_encode()
    rank = np.argsort(np.argsort(np.array(names.dictionary.to_pylist(), dtype=object)))
    partition = rank[names.indices.to_numpy()] if len(names) else np.zeros(0, np.int64)
    by = [rows[name].to_numpy() for name in ("byte", "number")]
    ranks = [rows[name].to_numpy() for name in ("arrived_us", "key_low", "key_high")]
    rows = rows.take(pa.array(np.lexsort((*by, partition, *ranks))))
    places = zip(*(rows[name].to_pylist() for name in ("partition", "number", "byte")), strict=True)
    return _Shared(
        high=rows["key_high"].to_numpy(),
        low=rows["key_low"].to_numpy(),
        payload=rows["payload"].to_numpy(),
        arrived_us=rows["arrived_us"].to_numpy(),
        places=list(places),
        run=rows["run"].to_numpy(),
        row=rows["row"].to_numpy(),
    )


def _places_of(words: Int64s, sorted_words: Int64s) -> Int64s:
    """Where words stand among sorted ones, each as often as it does."""
    first = np.searchsorted(sorted_words, words)
    count = np.searchsorted(sorted_words, words, side="right") - first
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def _shared_words(words: Sequence[Int64s]) -> Int64s:
    """The first words of keys that are in more than one run, given those of each in order."""
    joined = np.sort(np.concatenate(words), kind="stable")  # it merges what is in order already
    found = _distinct(joined[1:][joined[1:] == joined[:-1]])  # in two runs, or twice in one
    among = [np.searchsorted(mine, found, side="right") > np.searchsorted(mine, found) for mine in words]
    runs_with: Int64s = np.sum(among, axis=0)
    return found[runs_with > 1]


def _distinct(words: Int64s) -> Int64s:
    """Words that are in order, each once. np.unique would not see the order, and takes ten times as long."""
    begins = np.ones(len(words), np.bool_)
    begins[1:] = words[1:] != words[:-1]
    return words[begins]


def _taken_back(events: Decoded, batch: int) -> pa.Table:
    """Entries that take events back: they stand beside the one that counts, so nothing but the sums changes."""
    entries = tally([events], batch=batch)
    for name in ("amount_micros", "event_count"):
        at = entries.schema.get_field_index(name)
        entries = entries.set_column(at, ENTRY.field(name), pc.negate(entries[name]))
    return entries
