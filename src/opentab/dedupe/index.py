"""The runs of ids that were seen, as a process has them at hand.

This is the read side of a log-structured merge tree (LSM tree): each batch adds a sorted run, runs are merged in
tiers (`sorted_runs.py`), and a key is searched for in each run. A small run is in memory. A large one is copied once a
machine into a scratch file of plain columns, which is mapped and not loaded: 200 million ids need no memory of their
own. Next to it is its Bloom filter (`bloom.py`), which spares nearly all searches. To look an id up among 30 million in
6 runs takes 0.55 µs of a core. The simple version that it must agree with is a dictionary of all ids (tests/test_once).

The copy is made of rows that were just written, or of a file whose checksums agree. It has a checksum of its own, which
each process compares when it opens it. Scratch files are not durable: after a restart of the machine they are made
again.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.core.records import SEEN
from opentab.dedupe.bloom import BloomFilter, add_words, bloom_filter, empty_filter
from opentab.dedupe.sorted_runs import SLICE_ROWS, Run
from opentab.runtime.disk import write_at
from opentab.runtime.permissions import scratch_directory
from opentab.runtime.storage import Place
from opentab.tables.files import StagedFile, read_batches, read_table

COLUMNS = ["key_high", "key_low", "payload", "arrived_us", "batch"]
MAPPED_ROWS = 65_536  # from here on a run is mapped
SCRATCH_SECONDS = 3_600
SWEEP_SECONDS = 60
CRC_BYTES = 1 << 20  # read at a time


class RunColumns(NamedTuple):
    """What counted before, of one run: rows sorted by the key's first word. The columns may lie in a file."""

    key_high: Int64s
    key_low: Int64s
    payload: Int64s
    arrived_us: Int64s
    batch: Int64s
    bloom: BloomFilter


class DedupeIndex:
    """The runs of one journal as this process has them."""

    def __init__(self, root: Place) -> None:
        self._root = root
        name = hashlib.sha256(f"{os.getuid()}:{root.uri}".encode()).hexdigest()[:16]
        self._scratches = f"opentab-seen-{name}"  # those of this journal begin so
        self._scratch = scratch_directory() / f"{self._scratches}-{_boot()}"
        self._loaded: dict[str, RunColumns] = {}
        self._swept = -float("inf")

    def load(self, runs: Sequence[Run]) -> list[RunColumns]:
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

    def _columns(self, run: Run) -> RunColumns:
        place = self._root / run.path
        if run.rows < MAPPED_ROWS:
            table = read_table(place, SEEN, run.rows, COLUMNS)
            high, low, payload, arrived_us, batch = (table[name].to_numpy() for name in COLUMNS)
            return RunColumns(high, low, payload, arrived_us, batch, bloom_filter(high))
        if not self._is_whole(run):
            self._write(run, read_batches(place, SEEN, run.rows, COLUMNS, batch_rows=SLICE_ROWS))
        columns, bloom = self._path_of(run, "columns.npy"), self._path_of(run, "bloom.npy")
        high, low, payload, arrived_us, batch = np.asarray(np.load(columns, mmap_mode="r"))
        return RunColumns(high, low, payload, arrived_us, batch, np.load(bloom, mmap_mode="r"))

    def _write(self, run: Run, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the scratch files of a run; a part of it is in memory at a time."""
        bloom = empty_filter(run.rows)
        shape = {"descr": "<i8", "fortran_order": False, "shape": (len(COLUMNS), run.rows)}
        with self._aside(self._path_of(run, "columns.npy")) as aside, aside.open("xb", buffering=0) as file:
            np.lib.format.write_array_header_1_0(file, shape)
            begin, done = file.tell(), 0
            for batch in batches:
                for at, name in enumerate(COLUMNS):
                    # Written and not mapped: pages that nobody has used yet are dear.
                    write_at(file.fileno(), begin + 8 * (at * run.rows + done), batch[name].to_numpy())
                add_words(bloom, batch["key_high"].to_numpy())
                done += batch.num_rows
        with self._aside(self._path_of(run, "bloom.npy")) as aside:
            np.save(aside, bloom)
        with self._aside(self._path_of(run, "crc")) as aside:
            aside.write_text(self._checksums(run), encoding="ascii")

    def _is_whole(self, run: Run) -> bool:
        """Whether the scratch files of a run are there and are what was written."""
        try:
            return self._path_of(run, "crc").read_text(encoding="ascii") == self._checksums(run)
        except (FileNotFoundError, UnicodeDecodeError):
            return False

    def _checksums(self, run: Run) -> str:
        return " ".join(f"{_crc_of(self._path_of(run, kind)):08x}" for kind in ("columns.npy", "bloom.npy"))

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


def _crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(CRC_BYTES):
            crc = crc32(part, crc)
    return crc


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > SCRATCH_SECONDS


@cache
def _boot() -> str:
    """Tells this start of the machine from all others, where it says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "0"
