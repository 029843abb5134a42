"""The runs of ids that were seen, as a process has them at hand.

A small run is in memory. A large one is copied once a machine into a scratch file of plain columns, which is mapped and
not loaded; next to it is its Bloom filter (`marks.py`), which spares nearly all looks into it. The copy is made of rows
that were just written, or of a file whose checksums agree. Scratch files are not durable: after the machine has started
anew they are made anew.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.core.records import SEEN
from opentab.dedupe.bloom import Marks, add_marks, marks_of, no_marks
from opentab.dedupe.sorted_runs import SLICE_ROWS, Run
from opentab.runtime.disk import write_at
from opentab.runtime.storage import Place
from opentab.tables.files import StagedFile, read_batches, read_table

COLUMNS = ["key_high", "key_low", "payload", "arrived_us", "batch"]
MAPPED_ROWS = 65_536  # from here on a run is mapped
SCRATCH_SECONDS = 3_600
SWEEP_SECONDS = 60


class Columns(NamedTuple):
    """What counted before, of one run: rows sorted by the key's first word. The columns may lie in a file."""

    key_high: Int64s
    key_low: Int64s
    payload: Int64s
    arrived_us: Int64s
    batch: Int64s
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
            self._write(Run(file.path, file.rows), table.select(COLUMNS).to_batches())

    def prepare(self, file: StagedFile) -> None:
        """Have a run at hand before it is asked for: whoever asks is likely to be on this machine."""
        if file.rows >= MAPPED_ROWS and self._root.is_local:
            self._columns(Run(file.path, file.rows))

    def remove(self) -> None:
        """Take away what is at hand on this machine; whoever needs it makes it again."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _columns(self, run: Run) -> Columns:
        place = self._root / run.path
        if run.rows < MAPPED_ROWS:
            table = read_table(place, SEEN, run.rows, COLUMNS)
            high, low, payload, arrived_us, batch = (table[name].to_numpy() for name in COLUMNS)
            return Columns(high, low, payload, arrived_us, batch, marks_of(high))
        columns, marks = self._path_of(run, "columns.npy"), self._path_of(run, "marks.npy")
        if not (columns.exists() and marks.exists()):
            self._write(run, read_batches(place, SEEN, run.rows, COLUMNS, batch_rows=SLICE_ROWS))
        high, low, payload, arrived_us, batch = np.asarray(np.load(columns, mmap_mode="r"))
        return Columns(high, low, payload, arrived_us, batch, np.load(marks, mmap_mode="r"))

    def _write(self, run: Run, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the scratch files of a run; a part of it is in memory at a time."""
        marks = no_marks(run.rows)
        shape = {"descr": "<i8", "fortran_order": False, "shape": (len(COLUMNS), run.rows)}
        with self._aside(self._path_of(run, "columns.npy")) as aside, aside.open("xb", buffering=0) as file:
            np.lib.format.write_array_header_1_0(file, shape)
            begin, done = file.tell(), 0
            for batch in batches:
                for at, name in enumerate(COLUMNS):
                    # Written and not mapped: pages that nobody has used yet are dear.
                    write_at(file.fileno(), begin + 8 * (at * run.rows + done), batch[name].to_numpy())
                add_marks(marks, batch["key_high"].to_numpy())
                done += batch.num_rows
        with self._aside(self._path_of(run, "marks.npy")) as aside:
            np.save(aside, marks)

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


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > SCRATCH_SECONDS


@cache
def _boot() -> str:
    """Tells this start of the machine from all others, where it says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "0"
