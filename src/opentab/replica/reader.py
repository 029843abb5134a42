"""Reads a replica that another process writes, and finds it again when that one has made it anew."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from opentab.core.errors import ReplicaDamaged, ReplicaError
from opentab.replica.flags import report_damage
from opentab.replica.store import DATA_NAME, Reading, Store

LOOK_SECONDS = 0.5
REFUSED_SECONDS_MAX = 5.0


class Reader:
    """A replica's copy, open for reading as soon as there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._inode: int | None = None
        self._looked = 0.0
        self._refused: tuple[int, float] | None = None  # a copy that cannot be opened, and since when

    def read(self) -> Reading:
        """A view of one position; raises ReplicaError where there is nothing to read yet."""
        return self._current().read()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _current(self) -> Store:
        with self._lock:
            now = time.monotonic()
            if self._store is None or now - self._looked > LOOK_SECONDS:
                self._looked = now
                self._open_again()
            if self._store is None:
                raise ReplicaError("the replica is being made", retry_helps=True)
            return self._store

    def _open_again(self) -> None:
        try:
            inode = (self._path / DATA_NAME).stat().st_ino
        except FileNotFoundError:
            return
        if inode == self._inode:
            return
        try:
            # Whoever still reads the old one keeps it until it is done; then it goes with its last view.
            self._store = Store(self._path, writable=False)
            self._inode = inode
        except ReplicaDamaged as damage:
            # One that is just being made cannot be opened, either.
            if self._refused is None or self._refused[0] != inode:
                self._refused = (inode, time.monotonic())
            elif time.monotonic() - self._refused[1] > REFUSED_SECONDS_MAX:
                report_damage(self._path, damage.fact, inode=inode)
            raise
