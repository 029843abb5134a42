"""Ids that two tasks of one batch took: each task counted once, together they counted twice.

The driver only looks whether there are any. If so, one more Spark task settles them: the first one stays, by arrival
and place. Of the others, few as they are, the lines are read again; entries that take them back are committed with the
batch, and their tasks' runs are written again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opentab.billing.tally import exact_sum, tally
from opentab.billing.task import TaskResult, TaskSpec, index_of
from opentab.core.errors import LogError
from opentab.core.periods import Calendar, Int64s
from opentab.core.records import DID_NOT_COUNT, ENTRY, SEEN
from opentab.dedupe.sorted_runs import stage_run
from opentab.tables.files import StagedFile, read_table, stage
from opentab.wire.byte_columns import Texts
from opentab.wire.decode import Decoded, Identity, decode

Bools = npt.NDArray[np.bool_]
ReadLines = Callable[[Sequence[tuple[str, int, int]]], list[bytes]]

_BESIDE = ThreadPoolExecutor(2)  # for the life of the process: memory that nobody has used yet is dear


class Repeats(msgspec.Struct, frozen=True):
    """What the tasks counted too much, and the files that set it right."""

    count: int = 0
    sum_micros: str = "0"
    late_events: int = 0
    entry_rows: int = 0
    dropped: list[str] = []  # paths of runs that others take the place of
    files: list[StagedFile] = []


@dataclass(frozen=True, slots=True)
class Shared:
    """What may be the same ids in the runs of several tasks."""

    files: list[StagedFile]  # all runs of the batch
    words: Int64s  # the first words of keys that more than one of them has
    refused: set[tuple[int, int]]  # the keys of reversals that a task refused
    latest_us: int  # the latest arrival of the batch


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


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that a task has just written and no commit names yet."""

    file: StagedFile
    table: pa.Table

    @classmethod
    def read(cls, spec: TaskSpec, file: StagedFile, rows: Int64s) -> _Run:
        """With all of its rows, if any is asked for."""
        if not len(rows):
            return cls(file, SEEN.empty_table())
        return cls(file, read_table(spec.journal / file.path, SEEN, file.rows, use_threads=False))

    def without(self, rows: Int64s, *, spec: TaskSpec) -> StagedFile | None:
        """The same run without some of its rows, as a new file; None where it has no others."""
        kept = np.ones(self.table.num_rows, np.bool_)
        kept[rows] = False
        table = self.table.filter(pa.array(kept))
        staged = stage_run(spec.journal, iter([table]), run=spec.run, batches=(spec.batch, spec.batch))
        if staged is not None:
            index_of(spec.journal).keep(staged, table)
        return staged


def shared_across(results: Sequence[TaskResult], spec: TaskSpec) -> Shared | None:
    """What several tasks may have taken; None, nearly always, where there is no such thing."""
    files = [file for result in results for file in result.files if file.kind == "seen"]
    if len(files) < 2:
        return None
    words = _shared_words(list(_BESIDE.map(partial(_first_words, spec), files)))
    if not len(words):
        return None
    return Shared(
        files=files,
        words=words,
        refused={key for result in results for key in result.refused_reversals},
        latest_us=max(taken.arrived_us for result in results for taken in result.taken.values()),
    )


def settle(found: Shared, spec: TaskSpec, read_lines: ReadLines) -> Repeats | None:
    """What several tasks took of the same keys; None where entries cannot set it right.

    That is so where values differ, where something is reversed, where the window ends in the midst of the batch, or
    where the lines cannot be read again.
    """
    rows = [_places_of(found.words, mine) for mine in _BESIDE.map(partial(_first_words, spec), found.files)]
    runs = list(_BESIDE.map(partial(_Run.read, spec), found.files, rows))
    shared = _shared([run.table.take(pa.array(mine)) for run, mine in zip(runs, rows, strict=True)], rows, spec)
    if not len(shared):
        return Repeats()
    if not found.refused.isdisjoint(zip(shared.high.tolist(), shared.low.tolist(), strict=True)):
        return None  # what counted elsewhere might have been a better reason to refuse them
    first = np.ones(len(shared), np.bool_)  # of its key
    first[1:] = (shared.high[1:] != shared.high[:-1]) | (shared.low[1:] != shared.low[:-1])
    starts, key = np.flatnonzero(first), np.cumsum(first) - 1
    several = _differ(shared.run, starts)
    ends = found.latest_us - shared.arrived_us[starts] > spec.rules.dedupe_us
    if (several & (_differ(shared.payload, starts) | ends)).any():
        return None
    losers = np.flatnonzero(~first & several[key])
    return _set_right(read_lines, spec, runs, shared, losers) if len(losers) else Repeats()


def _first_words(spec: TaskSpec, file: StagedFile) -> Int64s:
    """The first words of a run's keys, in order."""
    table = read_table(spec.journal / file.path, SEEN, file.rows, ["key_high"], use_threads=False)
    words: Int64s = table["key_high"].to_numpy()
    return words


def _differ(column: Int64s, starts: Int64s) -> Bools:
    """Which groups have more than one value; they begin at `starts`."""
    differ: Bools = np.minimum.reduceat(column, starts) != np.maximum.reduceat(column, starts)
    return differ


def _set_right(
    read_lines: ReadLines, spec: TaskSpec, runs: list[_Run], shared: _Shared, losers: Int64s
) -> Repeats | None:
    try:
        lines = read_lines([shared.places[at] for at in losers.tolist()])
    except (LogError, NotImplementedError):
        return None  # they are not to be had here: whoever bills all of it anew says why, if that is a fault
    arrived_us = shared.arrived_us[losers]
    events = decode(Texts.of(lines), arrived_us=arrived_us, rules=spec.rules, calendar=Calendar(spec.rules.zone))
    if len(events.at_us) != len(lines) or events.identity is None or events.identity.reversals:
        return None
    if _keyed(events.identity) != _keyed(shared, losers):
        return None  # not the lines that the tasks read: one task reads all anew, and checks every checksum
    numbers = np.unique(shared.run[losers]).tolist()
    changed = [runs[number] for number in numbers]
    gone = [shared.row[losers[shared.run[losers] == number]] for number in numbers]
    changing = _BESIDE.map(partial(_Run.without, spec=spec), changed, gone)  # meanwhile the entries are made
    entries = _taken_back(events, spec.batch)
    files = [stage(spec.journal, "entry", entries, run=spec.run, batches=(spec.batch, spec.batch))]
    files += [file for file in changing if file is not None]
    late_before = spec.late_before_day
    return Repeats(
        count=len(lines),
        sum_micros=str(exact_sum(events.amount_micros)),
        late_events=0 if late_before is None else int((events.day < late_before).sum()),
        entry_rows=entries.num_rows,
        dropped=[run.file.path for run in changed],
        files=files,
    )


def _keyed(rows: Identity | _Shared, at: Int64s | None = None) -> list[tuple[int, int, int]]:
    """The keys of events and the hashes of their values, in order."""
    high, low = (rows.key_high, rows.key_low) if isinstance(rows, Identity) else (rows.high, rows.low)
    columns = [column if at is None else column[at] for column in (high, low, rows.payload)]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def _shared(tables: Sequence[pa.Table], rows_of: Sequence[Int64s], spec: TaskSpec) -> _Shared:
    """Those rows of each run that are asked for, without what was rejected or is forgotten."""
    found = []
    for number, (mine, row) in enumerate(zip(tables, rows_of, strict=True)):
        wanted = mine["payload"].to_numpy() != DID_NOT_COUNT
        if spec.forgotten_us is not None:  # it is not known, not even to its repeats
            wanted &= mine["arrived_us"].to_numpy() >= spec.forgotten_us
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
