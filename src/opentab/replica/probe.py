"""Reads a replica from end to end; the exit code says whether it is whole: python -m opentab.replica.probe PATH"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from opentab.errors import ReplicaDamaged
from opentab.replica.store import FORMAT, Store
from opentab.replica.wide import CELL, CELL_BYTES, sum_micros

CHUNK = 100_000


def examine(path: Path) -> None:
    """Raise ReplicaDamaged if a copy does not add up."""
    store = Store(path, writable=False)
    with store.read() as snapshot:
        try:
            meta = snapshot.meta()
        except msgspec.MsgspecError as error:
            raise ReplicaDamaged(f"the replica {path} does not say what it is: {error}") from error
        if meta is None:
            return
        if meta.format != FORMAT:
            raise ReplicaDamaged(f"the replica {path} has format {meta.format}")
        for table in ("lines", "customers", "types", "periods"):
            micros = events = 0
            values: list[bytes] = []
            for _, value in snapshot.scan(table, b""):
                if len(value) != CELL_BYTES:
                    raise ReplicaDamaged(f"the replica {path} has a cell of {len(value)} bytes")
                values.append(value)
                if len(values) == CHUNK:
                    micros, events = _with(values, micros, events)
                    values = []
            micros, events = _with(values, micros, events)
            wanted = meta.sums.get(table, ("0", 0))
            if (str(micros), events) != tuple(wanted):
                raise ReplicaDamaged(f"the {table} of the replica {path} add up to {micros}, not {wanted[0]}")
        for _, value in snapshot.scan("invoices", b""):
            if not value.endswith(b"}"):
                raise ReplicaDamaged(f"the replica {path} has half an invoice")
    store.close()


def _with(values: list[bytes], micros: int, events: int) -> tuple[int, int]:
    cells = np.frombuffer(b"".join(values), CELL)
    return micros + sum_micros(cells), events + int(cells["events"].sum())


if __name__ == "__main__":
    try:
        examine(Path(sys.argv[1]))
    except ReplicaDamaged as damaged:
        sys.stderr.write(f"{damaged}\n")
        sys.exit(1)
