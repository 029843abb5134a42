"""`opentab up`: the processes of a home, started again when they die or hang, and stopped together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from opentab.core.errors import ConfigError, HomeLocked, InputError, MachineError, OpentabError
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.runtime.lock import Lock
from opentab.runtime.parent import end_with_parent
from opentab.runtime.processes import Kept, Sign, keep, stop
from opentab.sinks.delivery_status import read_backlog

PARTS = ("run", "serve", "deliver")
# Reads go on to the last.
STOPPED_TOGETHER = (("run", "deliver"), ("serve",))
RESTART_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
GROUP_SECONDS_MAX = 5.0
LOG_BYTES_MAX = 16 * 2**20
LAST_WORDS_BYTES = 4096
# What no second try mends.
HOPELESS: dict[int, type[OpentabError]] = {ConfigError.exit_code: ConfigError, MachineError.exit_code: MachineError}


class Part(Kept):
    """One process of a home, with its log."""

    def __init__(self, home: Home, name: str, *, hung_after: timedelta, say: Callable[[str], None]) -> None:
        super().__init__(restart_seconds_max=RESTART_SECONDS_MAX, hung_seconds=hung_after.total_seconds())
        self.name = name
        self._home = home
        self._say = say
        self._log_path = home.logs_path / f"{name}.log"
        self._log_begin = 0

    def look(self, now: float) -> None:
        """Raises what stopped it, where that was a mistake that stands from the start."""
        if self.runs:
            self._shorten_log()
        super().look(now)

    def kill(self) -> None:
        """End it and whatever it started."""
        if self._process is not None:
            end_group(self._process)

    def start(self) -> subprocess.Popen[bytes]:
        self._home.logs_path.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        with self._log_path.open("ab") as log:
            log.write(f"--- {_now()} opentab {self.name}\n".encode())
            log.flush()
            self._log_begin = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "opentab.cli", self.name, "--home", str(self._home.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a signal from the terminal comes to us alone
                preexec_fn=lambda: end_with_parent(parent),  # noqa: PLW1509 - there are no threads here
            )
        self._say(f"{self.name} started: process {process.pid}, log {self._log_path}")
        return process

    def ended(self, process: subprocess.Popen[bytes], pause_seconds: float) -> None:
        end_group(process)
        code, words = process.returncode, self._last_words()
        if code in HOPELESS and not self._ran_well:
            fact, _, hint = words.partition("\n")
            raise HOPELESS[code](f"opentab {self.name}: {fact}", hint=hint or None)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        said = f": {words.splitlines()[0]}" if words else ""
        self._say(f"{self.name} died ({how}){said}; again in {pause_seconds:g} s")

    def hangs(self, seconds: float) -> None:
        self._say(f"{self.name} hangs: no sign of life for {seconds:.0f} s; it is killed")

    def last_sign(self, process: subprocess.Popen[bytes]) -> Sign | None:
        if self.name == "run":
            beat = read_heartbeat(self._home.ledger)
            return Sign(beat.pid, beat.at_us) if beat else None
        if self.name == "deliver":
            backlog = read_backlog(self._home.sinks_path)
            return Sign(backlog.pid, backlog.at_us) if backlog else None
        return None

    def _shorten_log(self) -> None:
        """Begin a log anew that has become too long; the one before it is kept."""
        with suppress(OSError):
            if self._log_path.stat().st_size > LOG_BYTES_MAX:
                # The process holds the file open, and appends: it cannot be moved away under it.
                shutil.copyfile(self._log_path, self._log_path.with_suffix(".log.1"))
                os.truncate(self._log_path, 0)
                self._log_begin = 0

    def _last_words(self) -> str:
        """What the process complained of before it ended: the fact, and in the next line the hint."""
        try:
            with self._log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_begin, end - LAST_WORDS_BYTES))
                text = log.read().decode("utf-8", errors="replace").strip()
        except OSError:
            return ""
        _, complained, words = text.rpartition("opentab: ")
        lines = [line.strip() for line in (words if complained else text).splitlines()]
        return "\n".join(lines[:2] if complained else lines[-1:])


def supervise(home: Home, names: Sequence[str], *, hung_after: timedelta, say: Callable[[str], None]) -> None:
    """Keep the parts of a home running until SIGTERM or SIGINT comes; then stop them all, and return.

    Raises what one of them says, after stopping the others, if it cannot even start for a mistake that no second try
    mends. A second signal does not wait for anything.
    """
    if not names:
        raise InputError("nothing is left to run", hint="give fewer --without")
    lock = Lock(home.path / "up.lock")
    try:
        if not lock.take_if_free():
            raise HomeLocked(f"another opentab up works on {home.path}: {lock.holder()}", hint="stop it first")
        signals = _Signals()
        parts = [Part(home, name, hung_after=hung_after, say=say) for name in names]
        try:
            keep(parts, is_over=lambda: signals.count > 0)
            say("stopping")
        finally:
            _stop(parts, signals, say)
    finally:
        lock.release()


class _Signals:
    """How often we were told to stop."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._came)

    def _came(self, *_: object) -> None:
        self.count += 1


def _stop(parts: Sequence[Part], signals: _Signals, say: Callable[[str], None]) -> None:
    try:
        for names in STOPPED_TOGETHER:
            ending = [part for part in parts if part.name in names and part.runs]
            late = stop(ending, seconds_max=STOP_SECONDS_MAX, hurries=lambda: signals.count > 1)
            for part in ending:
                say(f"{part.name} {'does not end: it is killed' if part in late else 'ended'}")
    finally:
        for part in parts:
            part.kill()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and all that it started there; returns when they are gone."""
    deadline = time.monotonic() + GROUP_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.poll()  # our own child is a member until it is buried
        time.sleep(0.01)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
