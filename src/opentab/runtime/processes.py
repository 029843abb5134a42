"""Processes that are kept running: started again when they end or hang, less and less often where that goes on."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentab.runtime.logs import fields

LOOK_SECONDS = 0.1
RESTART_SECONDS = 1.0
WELL_SECONDS = 60.0  # after so long, the next end is the first one again
START_TIMES_HUNG = 10  # before its first sign of life a process may take so many times as long

logger = logging.getLogger("opentab.runtime")


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life: whose, and which."""

    pid: int
    at: int


class Kept:
    """One process, as long as somebody looks at it."""

    name: str

    def __init__(self, *, restart_seconds_max: float, hung_seconds: float) -> None:
        self._restart_seconds_max = restart_seconds_max
        self._hung_seconds = hung_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._starts_at = 0.0
        self._pause = RESTART_SECONDS
        self._ran_well = False  # ever
        self._sign: Sign | None = None
        self._sign_seen = 0.0

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def look(self, now: float) -> None:
        """Start it if it is time, bury it if it has ended, kill it if it hangs."""
        process = self._process
        if process is None:
            if now >= self._starts_at:
                self._starts_at = now + RESTART_SECONDS  # where it cannot even be started
                self._process = self.start()
                pid = self._process.pid if self._process else None
                logger.info("process starts" if pid else "process cannot start", extra=fields(part=self.name, pid=pid))
                self._started = self._sign_seen = now
                self._sign = None
        elif process.poll() is None:
            self._ran_well = self._ran_well or now - self._started >= WELL_SECONDS
            self._check_life(process, now)
        else:
            self._process = None
            if now - self._started >= WELL_SECONDS:
                self._pause = RESTART_SECONDS
            self._starts_at = now + self._pause
            told = fields(part=self.name, pid=process.pid, code=process.returncode, pause_seconds=self._pause)
            logger.warning("process ended, it starts again", extra=told)
            self.ended(process, self._pause)
            self._pause = min(2 * self._pause, self._restart_seconds_max)

    def stop(self) -> None:
        """Ask it to end."""
        if self.runs and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it."""
        if self.runs and self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> subprocess.Popen[bytes] | None:
        """Start it; None if that has to wait."""
        raise NotImplementedError

    def ended(self, process: subprocess.Popen[bytes], pause_seconds: float) -> None:
        """It has ended, and starts again after the pause. What is raised ends the keeping."""

    def hangs(self, seconds: float) -> None:
        """It has given no sign of life for so long, and is killed."""

    def last_sign(self, process: subprocess.Popen[bytes]) -> Sign | None:
        """Its last sign of life, or that of the one before it; None where nothing is known."""
        return None

    def _check_life(self, process: subprocess.Popen[bytes], now: float) -> None:
        sign = self.last_sign(process)
        if sign is None:
            self._sign_seen = now
        elif sign.pid == process.pid and sign != self._sign:
            self._sign, self._sign_seen = sign, now
        if now - self._sign_seen > self._hung_seconds * (1 if self._sign else START_TIMES_HUNG):
            told = fields(part=self.name, pid=process.pid, seconds=round(now - self._sign_seen, 1))
            logger.warning("process hangs, it is killed", extra=told)
            self.hangs(now - self._sign_seen)
            self.kill()


def keep(kept: Sequence[Kept], *, is_over: Callable[[], bool]) -> None:
    """Keep processes running until it is over."""
    while not is_over():
        for one in kept:
            one.look(time.monotonic())
        time.sleep(LOOK_SECONDS)


def stop(kept: Sequence[Kept], *, seconds_max: float, hurries: Callable[[], bool] = lambda: False) -> list[Kept]:
    """End processes together. Those that do not end in time are killed, and returned."""
    for one in kept:
        one.stop()
    deadline = time.monotonic() + seconds_max
    while any(one.runs for one in kept) and time.monotonic() < deadline and not hurries():
        time.sleep(LOOK_SECONDS)
    late = [one for one in kept if one.runs]
    for one in kept:
        one.kill()
    return late
