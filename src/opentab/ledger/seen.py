"""What was seen: sorted runs of keys in the journal, merged in tiers.

A run is a file of the kind `seen`, sorted by the key. Once it is committed it never changes, so whoever needs it may
keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opentab.keys import ordered
from opentab.ledger.files import StagedFile, staged_writer
from opentab.ledger.plain import GROUP_ROWS_MAX
from opentab.place import Place
from opentab.records import SEEN, with_dictionaries

# A run as it is written: of partitions there are few.
RUN = with_dictionaries(SEEN, ["partition"])
ROW_GROUP_ROWS = GROUP_ROWS_MAX  # a receipt reads one
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
    root: Place, files: Sequence[dict[str, Any]], *, run: str, forgotten_us: int | None
) -> StagedFile | None:
    """One run out of several, without what is forgotten; None where nothing is left."""
    batches = (min(file["min.batch"] for file in files), max(file["max.batch"] for file in files))
    return stage_run(root, _slices(root, files, forgotten_us), run=run, batches=batches)


def _slices(root: Place, files: Sequence[dict[str, Any]], forgotten_us: int | None) -> Iterator[pa.Table]:
    """The rows of all runs in order, one range of keys after the other."""
    places = [root / file["path"] for file in files]
    parquets = [pq.ParquetFile(p.inside, filesystem=p.filesystem, read_dictionary=["partition"]) for p in places]
    rows = sum(file["num_records"] for file in files)
    slices = rows // SLICE_ROWS + 1
    bounds = [-(2**63) + 2**64 * number // slices for number in range(slices)] + [2**63]
    try:
        for low, high in pairwise(bounds):
            table = pa.concat_tables([rows_between(file, low, high) for file in parquets]).unify_dictionaries()
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
    table = file.read_row_groups(groups).select(RUN.names).cast(RUN) if groups else RUN.empty_table()
    column = table["key_high"].to_numpy()
    begin, end = np.searchsorted(column, low), len(column) if high > 2**63 - 1 else np.searchsorted(column, high)
    return table.slice(int(begin), int(end) - int(begin))
