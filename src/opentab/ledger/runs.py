"""The runs of ids that were seen, as a process has them at hand.

A small run is in memory. A large one stays where it is: its keys are read out of its own file, which is mapped and not
loaded. Beside it, in scratch files, are marks, which spare nearly all looks into it, and its arrivals and batches in
few bytes each. Scratch files are not durable: after the machine has started anew they are made anew.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opentab.ledger.files import StagedFile, read_parquet
from opentab.ledger.marks import Marks, add_marks, marks_of, no_marks
from opentab.ledger.narrow import Narrow, read_narrow, write_narrow
from opentab.ledger.plain import Column, PlainColumn, overwrite, plain_columns
from opentab.ledger.seen import ROW_GROUP_ROWS, SLICE_ROWS, Run
from opentab.periods import Int64s
from opentab.place import Place
from opentab.records import DID_NOT_COUNT, SEEN

KEYS = ["key_high", "key_low", "payload"]  # as they lie in a run's file
FACTS = ["arrived_us", "batch"]
MAPPED_ROWS = 65_536  # from here on a run is mapped
SCRATCH_SECONDS = 3_600
SWEEP_SECONDS = 60


class Columns(NamedTuple):
    """What counted before, of one run: rows sorted by the key's first word. The columns may lie in files."""

    key_high: Column
    key_low: Column
    payload: Column
    arrived_us: Column | Narrow
    batch: Column | Narrow
    marks: Marks


class Runs:
    """The runs of one journal as this process has them."""

    def __init__(self, root: Place) -> None:
        self._root = root
        name = hashlib.sha256(f"{os.getuid()}:{root.uri}".encode()).hexdigest()[:16]
        self._scratches = f"opentab-seen-{name}"  # those of this journal begin so
        self._scratch = Path(tempfile.gettempdir()) / f"{self._scratches}-{_boot()}"
        self._loaded: dict[str, Columns] = {}
        self._swept = -float("inf")

    def load(self, runs: Sequence[Run]) -> list[Columns]:
        """The columns of these runs; what is not among them is let go."""
        new = [run for run in runs if run.path not in self._loaded]
        random.shuffle(new)  # what has to be prepared is shared with the other processes of this machine
        loaded = self._loaded | {run.path: self._columns(run) for run in new}
        self._loaded = {run.path: loaded[run.path] for run in runs}
        self._sweep(runs)
        return list(self._loaded.values())

    def keep(self, file: StagedFile, table: pa.Table) -> None:
        """Prepare a run that was just written, while its table is still in memory."""
        if file.rows >= MAPPED_ROWS and self._root.is_local:
            facts = [table[name].to_numpy() for name in FACTS]
            ranges = [(int(fact.min()), int(fact.max())) for fact in facts]
            self._write(Run(file.path, file.rows), marks_of(table["key_high"].to_numpy()), ranges, iter([facts]))

    def prepare(self, file: StagedFile) -> None:
        """Have a run at hand before it is asked for: whoever asks is likely to be on this machine."""
        if file.rows >= MAPPED_ROWS and self._root.is_local:
            self._columns(Run(file.path, file.rows))

    def remove(self) -> None:
        """Take away what is at hand on this machine; whoever needs it makes it again."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _columns(self, run: Run) -> Columns:
        if run.rows < MAPPED_ROWS:
            table = read_parquet(self._root / run.path, columns=[*KEYS, *FACTS])
            high, low, payload, arrived_us, batch = (table[name].to_numpy() for name in (*KEYS, *FACTS))
            return Columns(high, low, payload, arrived_us, batch, marks_of(high))
        keys = self._keys(run)
        marks, facts = self._path_of(run, "blocks.npy"), self._path_of(run, "facts")
        if not (marks.exists() and facts.exists()):
            self._read_aside(run, keys[0])
        arrived, batches = read_narrow(facts, run.rows, len(FACTS))
        return Columns(keys[0], keys[1], keys[2], arrived, batches, np.load(marks, mmap_mode="r"))

    def _keys(self, run: Run) -> list[PlainColumn]:
        """The keys of a run, mapped: out of its own file, or of a copy where that is elsewhere or written otherwise."""
        own = plain_columns((self._root / run.path).path, KEYS) if self._root.is_local else None
        if own is not None:
            return own
        path = self._path_of(run, "keys.parquet")
        if not path.exists():
            with self._aside(path) as aside, self._open(run) as file:
                schema = pa.schema([SEEN.field(name) for name in KEYS])
                options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
                with pq.ParquetWriter(aside, schema, **options) as writer:
                    for batch in file.iter_batches(batch_size=SLICE_ROWS, columns=KEYS):
                        table = pa.Table.from_batches([batch]).select(KEYS).cast(schema)
                        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        copy = plain_columns(path, KEYS)
        assert copy is not None, path
        return copy

    def _read_aside(self, run: Run, words: PlainColumn) -> None:
        """Prepare a run from its file; a part of it is in memory at a time."""
        marks = no_marks(run.rows)
        for first in range(0, run.rows, SLICE_ROWS):
            add_marks(marks, words.take(np.arange(first, min(first + SLICE_ROWS, run.rows))))
        with self._open(run) as file:
            ranges = [_range_of(file, name) for name in FACTS]
            batches = file.iter_batches(batch_size=SLICE_ROWS, columns=FACTS)
            self._write(run, marks, ranges, ([batch[name].to_numpy() for name in FACTS] for batch in batches))

    def _write(
        self, run: Run, marks: Marks, ranges: Sequence[tuple[int, int]], facts: Iterator[Sequence[Int64s]]
    ) -> None:
        with self._aside(self._path_of(run, "blocks.npy")) as aside:
            np.save(aside, marks)
        with self._aside(self._path_of(run, "facts")) as aside:
            write_narrow(aside, run.rows, ranges, facts)

    def _open(self, run: Run) -> pq.ParquetFile:
        place = self._root / run.path
        return pq.ParquetFile(place.inside, filesystem=place.filesystem)

    def _path_of(self, run: Run, kind: str) -> Path:
        return self._scratch / f"{Path(run.path).name}.{kind}"

    @contextmanager
    def _aside(self, path: Path) -> Iterator[Path]:
        """A name for a scratch file that is not ready; in the end it gets its own, and what failed goes."""
        self._make_scratch()
        aside = path.with_name(f"{secrets.token_hex(8)}.new{path.suffix}")
        try:
            yield aside
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _make_scratch(self) -> None:
        """Make the directory; those of earlier starts of the machine go, where nobody has used them for an hour."""
        if not self._scratch.exists():
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            for other in self._scratch.parent.glob(f"{self._scratches}*"):
                with suppress(OSError):
                    if other != self._scratch and _is_old(other):
                        shutil.rmtree(other)

    def _sweep(self, runs: Sequence[Run]) -> None:
        """Remove scratch files of runs that were merged away an hour ago or earlier; now and then will do."""
        if time.monotonic() - self._swept < SWEEP_SECONDS:
            return
        self._swept = time.monotonic()
        names = {Path(run.path).name for run in runs}
        with suppress(OSError):
            for path in self._scratch.iterdir():
                run, suffix, _ = path.name.partition(".parquet")
                if run + suffix not in names and _is_old(path):
                    path.unlink()


class StagedRun:
    """A run that a task has just written and no commit names yet."""

    def __init__(self, root: Place, file: StagedFile) -> None:
        self.file = file
        self._place = root / file.path
        self._plain = plain_columns(self._place.path, KEYS) if root.is_local else None

    def first_words(self) -> Int64s:
        """The first words of its keys, in order."""
        if self._plain is not None:
            return self._plain[0].all()
        return cast("Int64s", read_parquet(self._place, ["key_high"])["key_high"].to_numpy())

    def rows(self, rows: Int64s) -> pa.Table:
        """Some of its rows, in the order of SEEN."""
        if not len(rows):
            return SEEN.empty_table()
        known = {"batch": pa.array(np.full(len(rows), self.file.batch_max))}
        if self._plain is not None:
            known |= {name: pa.array(c.take(rows)) for name, c in zip(KEYS, self._plain, strict=True)}
        unknown = [name for name in SEEN.names if name not in known]
        local = self._place.is_local
        with pq.ParquetFile(
            self._place.inside, filesystem=self._place.filesystem, memory_map=local, pre_buffer=not local,
            read_dictionary=["partition"],
        ) as parquet:  # fmt: skip
            table = parquet.read(columns=unknown, use_threads=False).take(pa.array(rows))
        return pa.table(
            [known[name] if name in known else table[name].cast(SEEN.field(name).type) for name in SEEN.names],
            schema=SEEN,
        )

    def erase(self, rows: Int64s, payload: Int64s) -> bool:
        """Let some of its rows, with these payloads, say that they did not count after all.

        False where it cannot be changed, and is as it was.
        """
        return self._place.is_local and overwrite(
            self._place.path, "payload", rows, before=payload, after=DID_NOT_COUNT
        )


def _range_of(file: pq.ParquetFile, name: str) -> tuple[int, int]:
    """The least and the largest number of a column, as the file itself says; all there are, where it does not."""
    at = file.schema_arrow.get_field_index(name)
    groups = [file.metadata.row_group(number).column(at).statistics for number in range(file.metadata.num_row_groups)]
    if not all(group is not None and group.has_min_max for group in groups):
        column = file.read([name])[name].to_numpy()
        return int(column.min()), int(column.max())
    return min(group.min for group in groups), max(group.max for group in groups)


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > SCRATCH_SECONDS


@cache
def _boot() -> str:
    """Tells this start of the machine from all others, where it says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "0"
