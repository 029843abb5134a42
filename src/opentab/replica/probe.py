"""Reads a replica from end to end: python -m opentab.replica.probe PATH

The exit code says whether it is whole. On the way it prints a dot a second for as long as it makes progress: a large
copy may take as long as it needs, and a probe that hangs is noticed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from opentab.core.errors import ReplicaDamaged
from opentab.replica import blocks
from opentab.replica.cell import read_cell
from opentab.replica.checksum import damaged
from opentab.replica.store import FORMAT, SUMMED, TABLES, Snapshot, Store

TELL_SECONDS = 1.0


def examine(path: Path, progress: Callable[[], None]) -> None:
    """Raise ReplicaDamaged if a copy does not match its checksums or does not add up. Each value read is progress."""
    store = Store(path, writable=False)
    with store.read() as snapshot:
        meta = snapshot.meta()
        if meta is None:
            return
        if meta.format != FORMAT:
            raise damaged(f"it has format {meta.format}")
        for table in TABLES:
            sums = _examine_blocks(snapshot, progress) if table == blocks.TABLE else _examine(snapshot, table, progress)
            micros, events = meta.sums.get(table, ("0", 0))
            if table in SUMMED and sums != (int(micros), events):
                raise damaged(f"the {table} add up to {sums[0]}, not {micros}")
    store.close()


def _examine(snapshot: Snapshot, table: str, progress: Callable[[], None]) -> tuple[int, int]:
    """Read every value, and look for it as others do; returns what they add up to."""
    micros = events = 0
    for key, value in snapshot.scan(table, b""):
        progress()
        if snapshot.get(table, key) != value:
            raise damaged(f"{key!r} of the {table} is not found")
        if table in SUMMED:
            amount, count, _ = read_cell(value)
            micros, events = micros + amount, events + count
    return micros, events


def _examine_blocks(snapshot: Snapshot, progress: Callable[[], None]) -> tuple[int, int]:
    micros = events = 0
    for key, value in snapshot.scan_blocks(b""):
        progress()
        found = snapshot.first_block(key, prefix=b"")
        if found is None or found[0] != key:
            raise damaged(f"the block {key!r} is not found")
        amount, count = blocks.sum_of(key, value)
        micros, events = micros + amount, events + count
    return micros, events


class Dots:
    """Says once in a while that there was progress."""

    def __init__(self, seconds: float = TELL_SECONDS) -> None:
        self._seconds = seconds
        self._told = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._told >= self._seconds:
            self._told = now
            sys.stdout.write(".")
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        examine(Path(sys.argv[1]), Dots())
    except ReplicaDamaged as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
