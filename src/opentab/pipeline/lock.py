"""One pipeline a home: a lock that the kernel lets go of when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from opentab.errors import HomeLocked


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    host: str
    since: str


class HomeLock:
    """Held while a pipeline works on a home."""

    def __init__(self, home: Path, *, take_over: bool) -> None:
        """Take the lock, or raise HomeLocked; with `take_over` go on without it: the journal's fence
        keeps the numbers right."""
        home.mkdir(parents=True, exist_ok=True)
        self._path = home / "pipeline.lock"
        self._file: IO[bytes] | None = self._path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            self.release()
            if take_over:
                return
            who = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
            raise HomeLocked(
                f"another pipeline works on {home}: {who}",
                hint="stop it first, or start with --take-over if it hangs",
            ) from None
        self._file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._file.write(msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), now)))
        self._file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _holder(self) -> Holder | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None
