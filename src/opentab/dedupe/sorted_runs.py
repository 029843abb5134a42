"""What was seen: sorted runs of keys in the journal, merged in tiers.

A run is a file of the kind `seen`, sorted by the key. Once it is committed it never changes, so whoever needs it may
keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from opentab.core.errors import LedgerBug
from opentab.core.records import SEEN, BatchRecord, with_dictionaries
from opentab.log.arrivals import NEVER_US, remembered_us
from opentab.runtime.storage import Place
from opentab.tables.files import OpenFile, StagedFile, staged_writer
from opentab.wire.hashing import ordered

# A run as it is written: of partitions there are few.
RUN = with_dictionaries(SEEN, ["partition"])
ROW_GROUP_ROWS = 16_384  # a receipt reads one
TIER_ROWS, TIER_RUNS = 4_096, 16  # each tier is so many times as large as the one below, and has no more runs
BEHIND_RUNS = 64  # unless the pipeline is behind: a merge takes from it what many a look into more runs does not
SLICE_ROWS = 1_000_000  # a merge holds about so many rows at a time


class Run(msgspec.Struct, frozen=True):
    """A run's file, as tasks are told of it."""

    path: str  # below the journal's root
    rows: int


def sorted_run(table: pa.Table) -> pa.Table:
    """Rows of the schema SEEN, or RUN, in the order of a run."""
    order, _ = ordered(table["key_high"].to_numpy())
    return table.take(pa.array(order))


def stage_run(root: Place, tables: Iterator[pa.Table], *, run: str, batches: tuple[int, int]) -> StagedFile | None:
    """Write a run aside from tables that are in order; None where there are no rows."""
    with staged_writer(root, "seen", RUN, run=run, batches=batches, row_group_rows=ROW_GROUP_ROWS) as writer:
        for table in tables:
            if table.num_rows:
                writer.write(table.cast(RUN).unify_dictionaries())
        staged = writer.finish()
    return staged if staged.rows else None


def tiers_to_merge(files: Sequence[dict[str, Any]], *, is_behind: bool = False) -> list[list[dict[str, Any]]]:
    """Which runs are to become one: all of a tier that has too many."""
    runs_max = BEHIND_RUNS if is_behind else TIER_RUNS
    tiers: dict[int, list[dict[str, Any]]] = {}
    for file in files:
        tier = 0
        while file["num_records"] >= TIER_ROWS * TIER_RUNS**tier:
            tier += 1
        tiers.setdefault(tier, []).append(file)
    return [chosen for chosen in tiers.values() if len(chosen) >= runs_max]


def merged_runs(
    root: Place, files: Sequence[dict[str, Any]], *, run: str, last: BatchRecord | None
) -> StagedFile | None:
    """One run out of several, without what is forgotten after the last batch; None where nothing is left."""
    batches = (min(file["min.batch"] for file in files), max(file["max.batch"] for file in files))
    merge = _Merge(root, files, last)
    staged = stage_run(root, merge.slices(), run=run, batches=batches)
    kept = staged.rows if staged is not None else 0
    if kept + merge.forgotten != merge.rows:
        raise LedgerBug(f"of {merge.rows} remembered ids {kept} were kept and {merge.forgotten} forgotten")
    return staged


class _Merge:
    """Several runs on their way into one."""

    def __init__(self, root: Place, files: Sequence[dict[str, Any]], last: BatchRecord | None) -> None:
        self._root = root
        self._files = files
        self._last = last
        self.rows = sum(file["num_records"] for file in files)
        self.forgotten = 0

    def slices(self) -> Iterator[pa.Table]:
        """The rows of all runs in order, one range of keys after the other."""
        slices = self.rows // SLICE_ROWS + 1
        bounds = [-(2**63) + 2**64 * number // slices for number in range(slices)] + [2**63]
        with ExitStack() as stack:
            opened = []
            for file in self._files:
                place = self._root / file["path"]
                opened.append(OpenFile(place, SEEN, file["num_records"], encoded=["partition"]))
                stack.callback(opened[-1].close)
            for low, high in pairwise(bounds):
                table = pa.concat_tables([rows_between(file, low, high) for file in opened]).unify_dictionaries()
                yield sorted_run(self._remembered(table))

    def _remembered(self, table: pa.Table) -> pa.Table:
        last = self._last
        if last is None or (last.forgotten_us is None and not last.restarts):
            return table
        arrived_us, batch = (table[name].to_numpy() for name in ("arrived_us", "batch"))
        known = remembered_us(arrived_us, batch, last.restarts, last.forgotten_us) != NEVER_US
        kept = table.filter(pa.array(known))
        self.forgotten += table.num_rows - kept.num_rows
        return kept


def rows_between(file: OpenFile, low: int, high: int) -> pa.Table:
    """The rows of a run whose keys begin with a word from `low` on and below `high`: few row groups are read."""
    ranges = file.ranges("key_high")
    tables = [file.group(at) for at, (least, most) in enumerate(ranges) if most >= low and least < high]
    table = pa.concat_tables([RUN.empty_table(), *tables])
    column = table["key_high"].to_numpy()
    begin, end = np.searchsorted(column, low), len(column) if high > 2**63 - 1 else np.searchsorted(column, high)
    return table.slice(int(begin), int(end) - int(begin))
