"""The runs of what was seen, opened to look up single keys: a few kilobytes of each are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.periods import Int64s
from opentab.core.records import SEEN
from opentab.dedupe.index import MAPPED_ROWS
from opentab.dedupe.sorted_runs import Run
from opentab.runtime.storage import Place
from opentab.tables.files import OpenFile


class KeyLookup:
    """The runs of one journal, each open for as long as it is live. For one thread at a time."""

    def __init__(self, root: Place) -> None:
        self._root = root
        self._opened: dict[str, _OpenRun] = {}

    def rows(self, runs: Sequence[Run], keys: Sequence[tuple[int, int]]) -> pa.Table:
        """All rows of these keys in these runs; other runs are let go."""
        live = {run.path for run in runs}
        for path in [path for path in self._opened if path not in live]:
            self._opened.pop(path).file.close()
        found = [SEEN.empty_table()]
        for run in runs:
            if run.path not in self._opened:
                self._opened[run.path] = _OpenRun(self._root / run.path, run.rows)
            found += [table for key in keys for table in self._opened[run.path].rows(key)]
        return pa.concat_tables(found)

    def close(self) -> None:
        """Let go of all of them."""
        self.rows([], [])


class _OpenRun:
    """One run: where each of its row groups begins and ends, and of a small one the keys' first words."""

    def __init__(self, place: Place, rows: int) -> None:
        self.file = OpenFile(place, SEEN, rows)
        ranges = np.array(self.file.ranges("key_high"), np.int64).reshape(-1, 2)
        self._lows, self._highs = ranges[:, 0], ranges[:, 1]
        self._keeps = rows < MAPPED_ROWS
        self._kept: dict[int, Int64s] = {}

    def rows(self, key: tuple[int, int]) -> list[pa.Table]:
        """The rows of one key: the first word is looked for alone, and the rest is read where it is found."""
        high, low = key
        first, last = np.searchsorted(self._highs, high, "left"), np.searchsorted(self._lows, high, "right")
        found = []
        for group in range(int(first), int(last)):
            words = self._words(group)
            begin, end = np.searchsorted(words, high, "left"), np.searchsorted(words, high, "right")
            if begin < end:
                table = self.file.group(group)
                alike = table.slice(int(begin), int(end - begin))
                found.append(alike.filter(pc.equal(alike["key_low"], low)))
        return found

    def _words(self, group: int) -> Int64s:
        words = self._kept.get(group)
        if words is None:
            words = self.file.group(group, ["key_high"])["key_high"].to_numpy()
            if self._keeps:
                self._kept[group] = words
        return words
