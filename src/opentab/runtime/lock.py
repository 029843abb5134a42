"""A lock that the kernel lets go of when its holder dies; it says who holds it."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from opentab.runtime.permissions import make_private


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Lock:
    """A file that one process at a time holds."""

    def __init__(self, path: Path) -> None:
        make_private(path.parent)
        self._path = path
        self._file: IO[bytes] | None = path.open("a+b")
        self._held = False

    def take_if_free(self) -> bool:
        """Hold the lock if nobody else does."""
        if self._held or self._file is None:
            return self._held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._file.write(msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), now)))
        self._file.flush()
        self._held = True
        return True

    def holder(self) -> str:
        """Who holds it, in words."""
        try:
            return str(msgspec.json.decode(self._path.read_bytes(), type=Holder))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return "another process"

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
