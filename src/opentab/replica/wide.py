"""Sums of 128 bits in numpy: money over many events may leave 64 bits, and must not wrap."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# One cell of a replica: a sum of micros as 128 bits, a count, and the latest event time.
CELL = np.dtype([("low", "<u8"), ("high", "<i8"), ("events", "<i8"), ("last_us", "<i8")])
CELL_BYTES = CELL.itemsize

Cells = npt.NDArray[np.void]
WORD = 1 << 64


def cells(micros: pa.Array, events: pa.Array, last_us: pa.Array) -> Cells:
    """Columns as cells; `micros` are decimals without fraction."""
    found = np.zeros(len(micros), CELL)
    words = np.frombuffer(micros.buffers()[1], "<u8").reshape(-1, 2)[micros.offset : micros.offset + len(micros)]
    found["low"], found["high"] = words[:, 0], words[:, 1].view("<i8")
    found["events"] = events.to_numpy(zero_copy_only=False)
    found["last_us"] = last_us.to_numpy(zero_copy_only=False)
    return found


def add(one: Cells, other: Cells) -> Cells:
    """The sum of two columns of cells, exact."""
    total = np.empty(len(one), CELL)
    total["low"] = one["low"] + other["low"]  # wraps, and the carry says so
    carry = (total["low"] < one["low"]).astype("<i8")
    total["high"] = one["high"] + other["high"] + carry
    total["events"] = one["events"] + other["events"]
    total["last_us"] = np.maximum(one["last_us"], other["last_us"])
    return total


def micros_of(cell: np.void) -> int:
    """The sum of one cell."""
    return int(cell["high"]) * WORD + int(cell["low"])


def sum_micros(column: Cells) -> int:
    """The sum of many cells, exact: halves of words are added apart, so that nothing wraps."""
    low = column["low"]
    halves = int((low & np.uint64(0xFFFFFFFF)).sum(dtype="<u8")) + (int((low >> np.uint64(32)).sum(dtype="<u8")) << 32)
    return int(column["high"].sum(dtype="<i8")) * WORD + halves
