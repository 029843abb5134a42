"""What was seen: sorted runs of keys in the journal, mapped where they are large, merged in tiers.

A run is a file of the kind `seen`, sorted by the key. Once it is committed it never changes, so whoever needs it may
keep it: a small one in memory, a large one as columns in a scratch file that is mapped and not loaded. Scratch files
are not durable: after the machine has started anew they are made anew.
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
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opentab.disk import write_at
from opentab.ledger.files import StagedFile, read_parquet, staged_writer
from opentab.ledger.marks import Marks, marks_of
from opentab.ledger.plain import overwrite
from opentab.place import Place
from opentab.records import DID_NOT_COUNT, SEEN, with_dictionaries

# A run as it is written: of partitions there are few.
RUN = with_dictionaries(SEEN, ["partition"])
COLUMNS = ["key_high", "key_low", "payload", "arrived_us", "batch"]
MAPPED_ROWS = 65_536  # from here on a run is mapped
ROW_GROUP_ROWS = 16_384  # a receipt reads one
TIER_ROWS, TIER_RUNS = 4_096, 16  # each tier is so many times as large as the one below, and never has more runs
SLICE_ROWS = 1_000_000  # a merge holds about so many rows at a time
SCRATCH_SECONDS = 3_600
_DID_NOT_COUNT = np.int64(DID_NOT_COUNT).tobytes()


class Keeper:
    """Takes a run's columns down, part by part, as the run is written."""

    def __init__(self, runs: Runs, path: Path, rows_max: int) -> None:
        self._runs = runs
        self._path = path
        self._rows_max = rows_max
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(len(COLUMNS), rows_max))
        self._begin = mapped.offset
        self._file = path.open("r+b")  # writes all of it or raises, also on a full disk
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """The next rows. They are written, not mapped: to touch pages that nobody has touched costs more."""
        for column, name in enumerate(COLUMNS):
            self._file.seek(self._begin + 8 * (column * self._rows_max + self._rows))
            self._file.write(np.ascontiguousarray(table[name].to_numpy()).data)
        self._rows += table.num_rows

    def finish(self, run: Run) -> None:
        """Let it be the columns of this run."""
        self.close()
        self._runs.take_up(self._path, run)

    def close(self) -> None:
        self._file.close()


class Run(msgspec.Struct, frozen=True):
    """A run's file, as tasks are told of it."""

    path: str  # below the journal's root
    rows: int


class Columns(NamedTuple):
    """A run's columns, sorted by `key_high`."""

    key_high: npt.NDArray[np.int64]
    key_low: npt.NDArray[np.int64]
    payload: npt.NDArray[np.int64]
    arrived_us: npt.NDArray[np.int64]
    batch: npt.NDArray[np.int64]
    marks: Marks


class Runs:
    """The runs of one journal as this process has them."""

    def __init__(self, root: Place) -> None:
        self._root = root
        name = hashlib.sha256(f"{os.getuid()}:{root.uri}".encode()).hexdigest()[:16]
        self._scratches = f"opentab-seen-{name}"  # those of this journal begin so
        self._scratch = Path(tempfile.gettempdir()) / f"{self._scratches}-{_boot()}"
        self._loaded: dict[str, Columns] = {}

    def load(self, runs: Sequence[Run]) -> list[Columns]:
        """The columns of these runs; what is not among them is let go."""
        new = [run for run in runs if run.path not in self._loaded]
        random.shuffle(new)  # what has to be taken down is shared with the other processes of this machine
        loaded = self._loaded | {run.path: self._columns(run) for run in new}
        self._loaded = {run.path: loaded[run.path] for run in runs}
        self._sweep(runs)
        return list(self._loaded.values())

    def first_words(self, file: StagedFile) -> npt.NDArray[np.int64]:
        """The first words of the keys of a run, in order; from its file where its columns are not at hand."""
        path = self._path_of(Run(file.path, file.rows))
        if path.exists():
            # Read, not mapped: all of them are wanted, once.
            return np.fromfile(path, np.int64, file.rows, offset=_mapped(path).offset)
        return cast("npt.NDArray[np.int64]", read_parquet(self._root / file.path, ["key_high"])["key_high"].to_numpy())

    def remove(self) -> None:
        """Take away what is at hand on this machine; whoever needs it takes it down again."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def keep(self, file: StagedFile, table: pa.Table) -> None:
        """Have the columns of a run at hand that was just written: its table is still in memory."""
        if file.rows >= MAPPED_ROWS:
            with self.keeping(file.rows) as keeper:
                keeper.add(table)
                keeper.finish(Run(file.path, file.rows))

    def rows(self, file: StagedFile, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Some rows of a run, in the order of SEEN; what its columns do not tell is read from its file."""
        if not len(rows):
            return SEEN.empty_table()
        place, path = self._root / file.path, self._path_of(Run(file.path, file.rows))
        known = {}
        if path.exists():
            columns = _mapped(path)
            known = {name: pa.array(columns[at][rows]) for at, name in enumerate(COLUMNS)}
        unknown = [name for name in SEEN.names if name not in known]
        with pq.ParquetFile(
            place.inside, filesystem=place.filesystem, memory_map=place.is_local, pre_buffer=not place.is_local,
            read_dictionary=["partition"],
        ) as parquet:  # fmt: skip
            table = parquet.read(columns=unknown, use_threads=False).take(pa.array(rows))
        return pa.table(
            [known[name] if name in known else table[name].cast(SEEN.field(name).type) for name in SEEN.names],
            schema=SEEN,
        )

    def erase(self, file: StagedFile, rows: npt.NDArray[np.int64], payload: npt.NDArray[np.int64]) -> bool:
        """Let some rows of a run that was just written, with these payloads, say that they did not count after all.

        False where it cannot be changed, and is as it was: its task may have its columns at hand in another place.
        """
        path = self._path_of(Run(file.path, file.rows))
        is_mapped = file.rows >= MAPPED_ROWS
        if is_mapped and not path.exists():
            return False
        if not overwrite((self._root / file.path).path, "payload", rows, before=payload, after=DID_NOT_COUNT):
            return False
        if is_mapped:
            columns = _mapped(path)
            payload_at = columns.offset + columns.strides[0] * COLUMNS.index("payload")
            with path.open("r+b") as scratch:
                for row in rows.tolist():  # this raises on a full disk, where a map would end the process
                    write_at(scratch.fileno(), payload_at + row * columns.itemsize, _DID_NOT_COUNT)
        return True

    @contextmanager
    def keeping(self, rows_max: int) -> Iterator[Keeper]:
        """Have the columns of a run at hand that is written part by part; it has so many rows at most."""
        with self._aside() as aside, closing(Keeper(self, aside, rows_max)) as keeper:
            yield keeper

    def take_up(self, aside: Path, run: Run) -> None:
        """Give a scratch file the name of its run."""
        path = self._path_of(run)
        aside.replace(path)
        self._write_marks(path, run.rows)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """A name for a scratch file that is not ready; what is still there in the end goes."""
        self._make_scratch()
        aside = self._scratch / f"{secrets.token_hex(8)}.new.npy"
        try:
            yield aside
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

    def _columns(self, run: Run) -> Columns:
        if run.rows < MAPPED_ROWS:
            read = _read(self._root / run.path)
            return _columns(read, marks_of(read[0]))
        path = self._path_of(run)
        if not path.exists():
            self._read_aside(run)
        if not _beside(path).exists():
            self._write_marks(path, run.rows)
        columns = [column[: run.rows] for column in _mapped(path)]
        return _columns(columns, np.load(_beside(path), mmap_mode="r"))

    def _read_aside(self, run: Run) -> None:
        """Take a run's columns down from its file; a part of it is in memory at a time."""
        place = self._root / run.path
        with self.keeping(run.rows) as keeper, pq.ParquetFile(place.inside, filesystem=place.filesystem) as file:
            for batch in file.iter_batches(batch_size=SLICE_ROWS, columns=COLUMNS):
                keeper.add(pa.Table.from_batches([batch]))
            keeper.finish(run)

    def _path_of(self, run: Run) -> Path:
        return self._scratch / f"{Path(run.path).name}.npy"

    def _write_marks(self, path: Path, rows: int) -> None:
        words = _mapped(path)[0][:rows]
        aside = path.with_suffix(f".{secrets.token_hex(4)}.new.npy")
        try:
            np.save(aside, marks_of(words))
            aside.replace(_beside(path))
        finally:
            aside.unlink(missing_ok=True)

    def _sweep(self, runs: Sequence[Run]) -> None:
        """Remove scratch files of runs that were merged away an hour ago or earlier."""
        names = {path.name for run in runs for path in (self._path_of(run), _beside(self._path_of(run)))}
        with suppress(OSError):
            for path in self._scratch.iterdir():
                if path.name not in names and _is_old(path):
                    path.unlink()


def _columns(columns: Sequence[npt.NDArray[np.int64]], marks: Marks) -> Columns:
    key_high, key_low, payload, arrived_us, batch = columns
    return Columns(key_high, key_low, payload, arrived_us, batch, marks)


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > SCRATCH_SECONDS


@cache
def _boot() -> str:
    """Tells this start of the machine from all others, where it says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "0"


def _mapped(path: Path) -> np.memmap[Any, Any]:
    """The columns in a scratch file; one that was kept while it was merged may have room behind their last row."""
    return cast("np.memmap[Any, Any]", np.load(path, mmap_mode="r"))


def _beside(path: Path) -> Path:
    """Where the marks of a run are, given where its columns are. An earlier form of them had another name."""
    return path.with_suffix(".blocks.npy")


def _read(place: Place) -> list[npt.NDArray[np.int64]]:
    table = read_parquet(place, columns=COLUMNS)
    return [table[name].to_numpy() for name in COLUMNS]


def sorted_run(table: pa.Table) -> pa.Table:
    """Rows of the schema SEEN in the order of a run."""
    order = np.argsort(table["key_high"].to_numpy(), kind="stable")
    return table.take(pa.array(order))


def stage_run(root: Place, tables: Iterator[pa.Table], *, run: str, batches: tuple[int, int]) -> StagedFile | None:
    """Write a run aside from tables that are in order; None where there are no rows."""
    with staged_writer(root, "seen", RUN, run=run, batches=batches, row_group_rows=ROW_GROUP_ROWS) as writer:
        for table in tables:
            if table.num_rows:
                writer.write(table.cast(RUN).unify_dictionaries())
        staged = writer.finish()
    return staged if staged.rows else None


def tiers_to_merge(files: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Which runs are to become one: all of a tier that has too many."""
    tiers: dict[int, list[dict[str, Any]]] = {}
    for file in files:
        tier = 0
        while file["num_records"] >= TIER_ROWS * TIER_RUNS**tier:
            tier += 1
        tiers.setdefault(tier, []).append(file)
    return [chosen for chosen in tiers.values() if len(chosen) >= TIER_RUNS]


def merged_runs(
    root: Place, files: Sequence[dict[str, Any]], *, run: str, forgotten_us: int | None
) -> StagedFile | None:
    """One run out of several, without what is forgotten; None where nothing is left."""
    batches = (min(file["min.batch"] for file in files), max(file["max.batch"] for file in files))
    rows_max = sum(file["num_records"] for file in files)
    slices = _slices(root, files, forgotten_us)
    if rows_max < MAPPED_ROWS or not root.is_local:
        return stage_run(root, slices, run=run, batches=batches)
    # The tasks are likely to be on this machine, too, and will want it.
    return stage_kept_run(root, slices, run=run, batches=batches, rows_max=rows_max)


def stage_kept_run(
    root: Place, tables: Iterator[pa.Table], *, run: str, batches: tuple[int, int], rows_max: int
) -> StagedFile | None:
    """Write a run aside as `stage_run` does, and have its columns at hand on this machine."""
    with Runs(root).keeping(rows_max) as keeper:
        staged = stage_run(root, _kept(tables, keeper), run=run, batches=batches)
        if staged is not None and staged.rows >= MAPPED_ROWS:
            keeper.finish(Run(staged.path, staged.rows))
    return staged


def _kept(tables: Iterator[pa.Table], keeper: Keeper) -> Iterator[pa.Table]:
    for table in tables:
        keeper.add(table)
        yield table


def _slices(root: Place, files: Sequence[dict[str, Any]], forgotten_us: int | None) -> Iterator[pa.Table]:
    """The rows of all runs in order, one range of keys after the other."""
    parquets = [
        pq.ParquetFile((root / file["path"]).inside, filesystem=(root / file["path"]).filesystem) for file in files
    ]
    rows = sum(file["num_records"] for file in files)
    slices = rows // SLICE_ROWS + 1
    bounds = [-(2**63) + 2**64 * number // slices for number in range(slices)] + [2**63]
    try:
        for low, high in pairwise(bounds):
            table = pa.concat_tables([rows_between(file, low, high) for file in parquets])
            if forgotten_us is not None:
                table = table.filter(pc.greater_equal(table["arrived_us"], forgotten_us))
            yield sorted_run(table)
    finally:
        for file in parquets:
            file.close()


def rows_between(file: pq.ParquetFile, low: int, high: int) -> pa.Table:
    """The rows of a run whose keys begin with a word from `low` on and below `high`: few row groups are read."""
    at = file.schema_arrow.get_field_index("key_high")
    groups = []
    for number in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(number).column(at).statistics
        if statistics.max >= low and statistics.min < high:
            groups.append(number)
    table = file.read_row_groups(groups).select(SEEN.names).cast(SEEN) if groups else SEEN.empty_table()
    column = table["key_high"].to_numpy()
    begin, end = np.searchsorted(column, low), len(column) if high > 2**63 - 1 else np.searchsorted(column, high)
    return table.slice(int(begin), int(end) - int(begin))
