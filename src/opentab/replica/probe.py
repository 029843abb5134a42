"""Reads a replica from end to end; the exit code says whether it is whole: python -m opentab.replica.probe PATH"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import msgspec

from opentab.errors import ReplicaDamaged
from opentab.replica import blocks
from opentab.replica.store import FORMAT, SUMMED, Store
from opentab.replica.wide import read_cell


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
        for table in SUMMED:
            micros = events = 0
            for _, value in snapshot.scan(table, b""):
                try:
                    amount, count = blocks.sum_of(value) if table == blocks.TABLE else read_cell(value)[:2]
                except struct.error:
                    raise ReplicaDamaged(f"the replica {path} has a cell of {len(value)} bytes") from None
                micros, events = micros + amount, events + count
            wanted = meta.sums.get(table, ("0", 0))
            if (str(micros), events) != tuple(wanted):
                raise ReplicaDamaged(f"the {table} of the replica {path} add up to {micros}, not {wanted[0]}")
        for _, value in snapshot.scan("invoices", b""):
            if not value.endswith(b"}"):
                raise ReplicaDamaged(f"the replica {path} has half an invoice")
    store.close()


if __name__ == "__main__":
    try:
        examine(Path(sys.argv[1]))
    except ReplicaDamaged as damaged:
        sys.stderr.write(f"{damaged}\n")
        sys.exit(1)
