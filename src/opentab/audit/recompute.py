"""Everything that the batches of a journal must have added, counted again from the raw log.

Only the batches' ranges of segments and the rules recorded with them are taken from the journal.
Memory is bounded: a group of segments is read, reduced to sums in DuckDB, and let go; DuckDB moves
what does not fit to the disk. Where every event counts once, those with an id are kept until all are
there, and summed up when it is settled which of them count (once.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.audit.clock import lines_arrived, restarts_so_far
from opentab.audit.days import DAY_US, Days
from opentab.audit.facts import BatchFacts, Recomputed
from opentab.audit.forgotten import forgotten_after, lapses_before, partitions_after
from opentab.audit.logs import Logs
from opentab.audit.once import Memory, create_keyed, settle
from opentab.audit.raw import RawLines, RawLog
from opentab.audit.refused import Refused, create_refused, insert_refused, refuse_keyed
from opentab.audit.rows import to_table
from opentab.audit.shapes import Shape, select_counted, shape_of
from opentab.audit.trusted import trust_ids
from opentab.audit.wire import Counted, decide, is_input
from opentab.core.errors import LogError
from opentab.core.events import Reason, Rules
from opentab.core.records import BatchRecord, ClockRestart

GROUP_BYTES_MAX = 64 * 1024 * 1024
GROUP_SLICES_MAX = 4096
CHUNK_LINES = 16_384
SHAPES_MAX = 16
LEARN_LINES_MIN = 256  # so few lines are decided one by one sooner than learned from
LEARN_SAMPLES = 32
LEARN_SHARE_MIN = 4  # of the samples

Progress = Callable[[int, int], None]  # batches done, batches in all
Int64s = npt.NDArray[np.int64]

SLOW_SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("slice", pa.int64()),
        ("at_us", pa.int64()),
        ("day", pa.int64()),
        ("customer", pa.string()),
        ("type", pa.string()),
        ("amount_micros", pa.int64()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("reverses", pa.string()),
    ]
)
PIECE_SCHEMA = pa.schema([(name, pa.int64()) for name in ("utc_day", "from_us", "to_us", "day")])


@dataclass(frozen=True, slots=True)
class Slice:
    """Some lines of the log as a part of one batch."""

    batch: int
    raw: RawLines


@lru_cache(maxsize=64)
def days_in(zone: str) -> Days:
    return Days(zone)


def recompute(
    con: duckdb.DuckDBPyConnection,
    logs: Logs,
    batches: Sequence[BatchRecord],
    progress: Progress | None = None,
    *,
    seen: ds.Dataset | None = None,
) -> Recomputed:
    """Count the batches again. Leaves the tables `recounted`, `refused`, `keyed` and `uncounted` in `con`.

    Of a batch whose log is gone the facts are what its record says, and the tables hold nothing. `seen`, the ids that
    the journal remembers, tells which later events repeat one of those.
    """
    con.execute(
        "CREATE TABLE recounted (batch BIGINT, day DATE, customer VARCHAR, type VARCHAR,"
        " amount_micros HUGEINT, event_count BIGINT, first_us BIGINT, last_us BIGINT)"
    )
    create_refused(con)
    create_keyed(con)
    result = Recomputed(facts={record.batch: BatchFacts() for record in batches})
    counter = _Counter(con, result)
    restarts = restarts_so_far(batches)
    for done, record in enumerate(batches, start=1):
        log = logs.of(record.batch)
        if log is None:
            result.facts[record.batch] = _facts_of(record)
        else:
            for slice_ in _slices(log, record, restarts[record.batch], result):
                counter.add(slice_, record.rules)
        if progress:
            progress(done, len(batches))
    counter.flush()
    result.partitions = partitions_after(batches, result.facts, logs)
    result.forgotten_us = forgotten_after(batches, result.partitions, logs)
    result.lapses = lapses_before(batches, result.forgotten_us)
    memories = {
        r.batch: Memory(r.rules.dedupe_us, result.forgotten_us.get(r.batch - 1), result.lapses[r.batch])
        for r in batches
    }
    settle(con, memories)
    if seen is not None:
        trust_ids(con, logs, seen)
    _sum_keyed(con, result)
    refuse_keyed(con, logs, batches, result)
    return result


def _facts_of(record: BatchRecord) -> BatchFacts:
    """What a batch's record says of it."""
    return BatchFacts(
        lines=record.event_count + record.rejection_count + record.duplicates,
        events=record.event_count,
        amount_micros=record.amount_micros,
        rejections=Counter(record.rejections),
        duplicates=record.duplicates,
        without_id=record.without_id,
        latest_us={n: s.latest_us for n, s in record.partitions.items() if s.latest_us is not None},
        arrived_us={n: s.arrived_us for n, s in record.partitions.items()},
    )


def _slices(log: RawLog, record: BatchRecord, restarts: Sequence[ClockRestart], result: Recomputed) -> Iterator[Slice]:
    arrived_us = result.facts[record.batch].arrived_us
    for partition, (first, last) in sorted(record.taken.items()):
        for piece in log.pieces(first, last):
            result.numbers += piece[1] - piece[0] + 1
            try:
                raw = lines_arrived(log.read(partition, *piece), restarts, log.base)
            except LogError as error:
                result.troubles.append((record.batch, error.fact))
                continue
            result.unchecked += not raw.is_checked
            if len(raw.arrived_us):
                arrived_us[partition] = max(int(raw.arrived_us.max()), arrived_us.get(partition, 0))
                yield Slice(record.batch, raw)


def _sum_keyed(con: duckdb.DuckDBPyConnection, result: Recomputed) -> None:
    """Add the events with an id that count to the sums, and what became of the others to the facts."""
    con.execute(
        """
        INSERT INTO recounted
        SELECT batch, DATE '1970-01-01' + day, customer, type, sum(amount_micros), count(*), min(at_us), max(at_us)
        FROM keyed ANTI JOIN uncounted ON keyed.rowid = uncounted.row
        GROUP BY batch, day, customer, type
        """
    )
    rows = con.execute(
        """
        SELECT batch, partition, count(*), count(*) FILTER (counts), count(*) FILTER (counts AND id IS NULL),
            count(*) FILTER (repeats), sum(amount_micros) FILTER (counts), max(at_us) FILTER (counts OR repeats)
        FROM (
            SELECT keyed.*, uncounted.row IS NULL AS counts, uncounted.row IS NOT NULL AND reason IS NULL AS repeats
            FROM keyed LEFT JOIN uncounted ON keyed.rowid = uncounted.row
        )
        GROUP BY batch, partition
        """
    ).fetchall()
    for batch, partition, lines, events, without_id, duplicates, amount_micros, latest_us in rows:
        facts = result.facts[batch]
        facts.lines += lines
        facts.events += events
        facts.without_id += without_id
        facts.duplicates += duplicates
        facts.amount_micros += int(amount_micros or 0)
        if latest_us is not None:
            facts.latest_us[partition] = max(latest_us, facts.latest_us.get(partition, latest_us))


class _Counter:
    """Collects slices into groups and reduces each group to sums."""

    def __init__(self, con: duckdb.DuckDBPyConnection, result: Recomputed) -> None:
        self._con = con
        self._result = result
        self._shapes_by_keyed: dict[bool, list[Shape]] = {False: [], True: []}
        self._slices: list[Slice] = []
        self._bytes = 0
        self._rules: Rules | None = None

    def add(self, slice_: Slice, rules: Rules) -> None:
        full = self._bytes >= GROUP_BYTES_MAX or len(self._slices) >= GROUP_SLICES_MAX
        if full or rules != self._rules:
            self.flush()
        self._rules = rules
        self._slices.append(slice_)
        self._bytes += len(slice_.raw.body)

    def flush(self) -> None:
        if self._slices and self._rules is not None:
            self._count(_Group(self._slices), self._rules, days_in(self._rules.zone))
        self._slices, self._bytes = [], 0

    def _count(self, group: _Group, rules: Rules, days: Days) -> None:
        """Count a group.

        1. the lines that fit a shape, in DuckDB
        2. learn from some of the rest, and again
        3. what is left, line by line
        4. sums by batch, day, customer and type, and by slice
        """
        self._con.execute(
            "CREATE OR REPLACE TEMP TABLE counted (n BIGINT, slice BIGINT, at_us BIGINT,"
            " customer VARCHAR, type VARCHAR, amount_micros BIGINT, id VARCHAR, source VARCHAR)"
        )
        keyed = rules.dedupe_us > 0
        shapes = self._shapes_by_keyed[keyed]
        rest = np.arange(group.line_count)
        lines = group.table(rules.future_skew_us)
        tried = 0
        while True:
            for shape in shapes[tried:]:
                if rest.size:
                    rest = self._fit(shape, rules, lines, rest)
            tried = len(shapes)
            if rest.size < LEARN_LINES_MIN:
                break
            new = _new_shapes(group, rest, rules, days, shapes)
            if not new:
                break
            shapes += new
        slow = self._decide_each(group, rest, rules, days)
        self._sum(group, slow, days, keyed=keyed)

    def _fit(self, shape: Shape, rules: Rules, lines: pa.Table, rest: Int64s) -> Int64s:
        todo = lines if rest.size == lines.num_rows else lines.take(pa.array(rest))
        self._con.register("todo", todo)
        self._con.execute(f"INSERT INTO counted {select_counted(shape, rules, 'todo')}")
        self._con.unregister("todo")
        fits = np.zeros(lines.num_rows, np.bool_)
        fits[self._con.execute("SELECT n FROM counted").fetchnumpy()["n"]] = True
        return rest[~fits[rest]]

    def _decide_each(self, group: _Group, rest: Int64s, rules: Rules, days: Days) -> pa.Table:
        counted: list[tuple[object, ...]] = []
        refused: list[Refused] = []
        for n in rest.tolist():
            raw, at = group.find(n)
            line = raw.line(at)
            if not is_input(line):
                continue
            verdict = decide(line, arrived_us=int(raw.arrived_us[at]), rules=rules, days=days)
            index = group.slice_index(n)
            batch = group.slices[index].batch
            if isinstance(verdict, Counted) and verdict.reverses is not None and not rules.dedupe_us:
                verdict = Reason.REVERSAL_UNKNOWN  # no event is remembered
            if isinstance(verdict, Counted):
                v = verdict
                values = (v.at_us, v.day, v.customer, v.type, v.amount_micros)
                counted.append((n, index, *values, v.id, v.source, v.reverses))
            else:
                where = (raw.partition, int(raw.numbers[at]), int(raw.bytes_at[at]))
                refused.append(Refused(batch, raw.place(at), str(verdict), line, *where))
                self._result.facts[batch].lines += 1
        insert_refused(self._con, refused, self._result)
        return to_table(counted, SLOW_SCHEMA)

    def _sum(self, group: _Group, slow: pa.Table, days: Days, *, keyed: bool) -> None:
        """Sum the events up; where they count once, those with a key are kept for later instead."""
        con = self._con
        utc_days = con.execute(f"SELECT DISTINCT at_us // {DAY_US} FROM counted").fetchall()
        con.register("pieces", to_table(days.pieces(day for (day,) in utc_days), PIECE_SCHEMA))
        con.register("slow", slow)
        batch_of = pa.table(
            {
                "slice": pa.array(range(len(group.slices)), pa.int64()),
                "batch": pa.array([slice_.batch for slice_ in group.slices], pa.int64()),
                "partition": pa.array([slice_.raw.partition for slice_ in group.slices], pa.string()),
            }
        )
        con.register("slices", batch_of)
        columns = "n, slice, at_us, day, customer, type, amount_micros, id, source, reverses"
        events = f"""
            WITH events AS (
                SELECT {columns}
                FROM (SELECT *, CAST(NULL AS VARCHAR) AS reverses FROM counted) counted
                JOIN pieces ON counted.at_us // {DAY_US} = pieces.utc_day
                    AND counted.at_us >= pieces.from_us AND counted.at_us < pieces.to_us
                UNION ALL SELECT {columns} FROM slow
            )
            """
        without_key = "id IS NULL AND reverses IS NULL" if keyed else "true"
        con.execute(
            f"""
            INSERT INTO recounted {events}
            SELECT batch, DATE '1970-01-01' + CAST(day AS INTEGER), customer, type,
                sum(amount_micros), count(*), min(at_us), max(at_us)
            FROM events JOIN slices USING (slice)
            WHERE {without_key}
            GROUP BY batch, day, customer, type
            """
        )
        if keyed:
            con.register("places", group.places())
            con.execute(
                f"""
                INSERT INTO keyed BY NAME {events}
                SELECT batch, arrived_us, partition, number, byte, id, source, reverses,
                    at_us, day, customer, type, amount_micros
                FROM events JOIN slices USING (slice) JOIN places USING (n)
                WHERE NOT ({without_key})
                """
            )
            con.unregister("places")
        self._sum_slices(group, without_key, keyed=keyed)
        for name in ("pieces", "slow", "slices"):
            con.unregister(name)

    def _sum_slices(self, group: _Group, without_key: str, *, keyed: bool) -> None:
        """Add to the facts what each slice has of events that count at once."""
        by_slice = self._con.execute(
            f"""
            SELECT slice, count(*), sum(amount_micros), max(at_us)
            FROM (SELECT slice, amount_micros, at_us, id, NULL AS reverses FROM counted
                  UNION ALL SELECT slice, amount_micros, at_us, id, reverses FROM slow)
            WHERE {without_key}
            GROUP BY slice
            """
        ).fetchall()
        for index, events, amount_micros, latest_us in by_slice:
            slice_ = group.slices[index]
            facts = self._result.facts[slice_.batch]
            facts.lines += events
            facts.events += events
            facts.without_id += events if keyed else 0
            facts.amount_micros += int(amount_micros)
            partition = slice_.raw.partition
            facts.latest_us[partition] = max(latest_us, facts.latest_us.get(partition, latest_us))


class _Group:
    """Some slices and where each of their lines begins."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.slices = list(slices)
        counts = [slice_.raw.arrived_us.size for slice_ in self.slices]
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        self.line_count = int(self._first[-1])

    def slice_index(self, n: int) -> int:
        return int(np.searchsorted(self._first, n, side="right")) - 1

    def find(self, n: int) -> tuple[RawLines, int]:
        """The lines that the n-th one is among, and which of them it is."""
        index = self.slice_index(n)
        return self.slices[index].raw, n - int(self._first[index])

    def table(self, future_skew_us: int) -> pa.Table:
        """The lines with their ends for DuckDB, sharing the bodies' memory."""
        texts, indexes, latest = [], [], []
        for index, slice_ in enumerate(self.slices):
            texts.append(_texts(slice_.raw))
            indexes.append(np.full(slice_.raw.arrived_us.size, index, np.int64))
            latest.append(slice_.raw.arrived_us + future_skew_us)
        table = pa.table(
            {
                "n": np.arange(self.line_count),
                "slice": np.concatenate(indexes),
                "latest_us": np.concatenate(latest),
                "line": pa.chunked_array(texts, pa.large_string()),
            }
        )
        # Small pieces, so that every core has some.
        return pa.Table.from_batches(table.to_batches(max_chunksize=CHUNK_LINES), table.schema)

    def places(self) -> pa.Table:
        """When each line arrived and where it stands."""
        raws = [slice_.raw for slice_ in self.slices]
        return pa.table(
            {
                "n": np.arange(self.line_count),
                "arrived_us": np.concatenate([raw.arrived_us for raw in raws]),
                "number": np.concatenate([raw.numbers for raw in raws]),
                "byte": np.concatenate([raw.bytes_at for raw in raws]),
            }
        )


def _new_shapes(group: _Group, rest: Int64s, rules: Rules, days: Days, known: Sequence[Shape]) -> list[Shape]:
    """The shapes of a few lines that are worth learning."""
    seen: Counter[Shape] = Counter()
    for n in rest[:: max(1, rest.size // LEARN_SAMPLES)][:LEARN_SAMPLES]:
        raw, at = group.find(int(n))
        line = raw.line(at)
        verdict = decide(line, arrived_us=int(raw.arrived_us[at]), rules=rules, days=days)
        if isinstance(verdict, Counted) and verdict.reverses is None:
            shape = shape_of(line, keyed=rules.dedupe_us > 0)
            if shape is not None and shape not in known:
                seen[shape] += 1
    new = [shape for shape, count in seen.most_common() if count >= LEARN_SHARE_MIN]
    return new[: SHAPES_MAX - len(known)]


def _texts(raw: RawLines) -> pa.Array:
    try:
        raw.body.decode("utf-8")
    except UnicodeDecodeError:
        # A line that is no text fits no shape; DuckDB must not see it.
        lines = [raw.line(index) for index in range(raw.arrived_us.size)]
        return pa.array([_text_or_nothing(line + b"\n") for line in lines], pa.large_string())
    return pa.LargeStringArray.from_buffers(raw.arrived_us.size, pa.py_buffer(raw.starts), pa.py_buffer(raw.body))


def _text_or_nothing(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return ""
