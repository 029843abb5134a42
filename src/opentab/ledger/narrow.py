"""Columns of numbers that differ little, in as few bytes as that takes, in a file that is mapped.

A file begins with the least number of each column and how many bytes its differences to it have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opentab.disk import write_at
from opentab.periods import Int64s

_HEAD_BYTES = 16  # for each column: two numbers


@dataclass(frozen=True, slots=True)
class Narrow:
    """A column: the least of its numbers, and how much more each is."""

    least: int
    more: npt.NDArray[np.unsignedinteger]

    def take(self, rows: Int64s, /) -> Int64s:
        """The numbers in these rows."""
        return self.least + self.more.take(rows).astype(np.int64)


def write_narrow(path: Path, rows: int, ranges: Sequence[tuple[int, int]], parts: Iterable[Sequence[Int64s]]) -> None:
    """Write columns of so many rows, part by part; the least and the largest number of each are known beforehand."""
    kinds = [np.min_scalar_type(largest - least) for least, largest in ranges]
    head = np.array([(least, kind.itemsize) for (least, _), kind in zip(ranges, kinds, strict=True)], np.int64)
    with path.open("xb", buffering=0) as file:
        write_at(file.fileno(), 0, head.tobytes())
        done = 0
        for part in parts:
            begin = _HEAD_BYTES * len(kinds)
            for (least, _), kind, column in zip(ranges, kinds, part, strict=True):
                write_at(file.fileno(), begin + done * kind.itemsize, (column - least).astype(kind).tobytes())
                begin += rows * kind.itemsize
            done += len(part[0])


def read_narrow(path: Path, rows: int, count: int) -> list[Narrow]:
    """So many columns of a file, mapped."""
    mapped = np.asarray(np.memmap(path, np.uint8, mode="r"))
    head = mapped[: _HEAD_BYTES * count].view(np.int64).reshape(count, 2)
    columns, begin = [], _HEAD_BYTES * count
    for least, width in head.tolist():
        end = begin + rows * width
        columns.append(Narrow(least, mapped[begin:end].view(f"u{width}")))
        begin = end
    return columns
