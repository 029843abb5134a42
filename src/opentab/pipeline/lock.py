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
from opentab.place import Place


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    host: str
    since: str


class Claim:
    """Which run of the pipeline the home belongs to: the one that started last.

    It tells a pipeline that was taken over to stop. Nothing rests on it: the journal's fence decides.
    """

    def __init__(self, ledger: Place, run: str) -> None:
        """Claim the home for a run."""
        self._place = ledger / "pipeline.claim"
        self._run = run.encode()
        ledger.make()
        self._place.replace(self._run)

    def is_ours(self) -> bool:
        """Whether nobody else has claimed the home since."""
        try:
            return self._place.read() == self._run
        except OSError:
            return True


class HomeLock:
    """Held while a pipeline works on a home."""

    def __init__(self, home: Path, *, take_over: bool) -> None:
        """Take the lock, or raise HomeLocked; with `take_over` go on without it: the journal's fence
        keeps the numbers right. It is ours once the other has let go."""
        home.mkdir(parents=True, exist_ok=True)
        self._path = home / "pipeline.lock"
        self._file: IO[bytes] | None = self._path.open("a+b")
        self._held = False
        if self.take_if_free() or take_over:
            return
        holder = self._holder()
        self.release()
        who = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
        raise HomeLocked(
            f"another pipeline works on {home}: {who}",
            hint="stop it first, or start with --take-over if it hangs",
        )

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

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _holder(self) -> Holder | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None
