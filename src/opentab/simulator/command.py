"""Our own commands as a user starts them: processes of their own, watched from outside, ended when we leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat

END_SECONDS_MAX = 30
PATIENCE_SECONDS = 600
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ours that runs, or ran, in a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    output_path: Path

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def check(self, *, ended_well: bool = False) -> None:
        """Raise if it has ended; with `ended_well`, only if it has failed."""
        code = self.process.poll()
        if code is None or (ended_well and code == 0):
            return
        raise OpentabError(f"opentab {self.name} ended: {self._last_words()}")

    def says(self, words: str) -> bool:
        """Whether it has said something by now."""
        return words in self.output_path.read_text(encoding="utf-8", errors="replace")

    def _last_words(self) -> str:
        lines = self.output_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


@contextmanager
def started(home: Home, name: str, *options: str, log: str | None = None) -> Iterator[Command]:
    """A command that works on a home. What it says goes to a file among the home's logs."""
    home.logs_path.mkdir(parents=True, exist_ok=True)
    output_path = home.logs_path / f"{log or name}-child.log"
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "opentab.cli", name, "--home", str(home.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield Command(name, process, output_path)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def bill_log(home: Home) -> None:
    """Bill all that is in a home's log."""
    with started(home, "run", "--once") as run:
        run.process.wait()
        run.check(ended_well=True)


def streams(home: Home, pipeline: Command) -> bool:
    """Whether Spark is up and the stream of this very pipeline runs."""
    beat = read_heartbeat(home.ledger)
    return beat is not None and beat.pid == pipeline.process.pid and beat.streaming


def wait_until(done: Callable[[], bool], what: str, *commands: Command, poll_seconds: float = POLL_SECONDS) -> None:
    """Wait while the commands run; raise if one of them ends first, or if it takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        for command in commands:
            command.check()
        if time.monotonic() > deadline:
            raise OpentabError(f"waited {PATIENCE_SECONDS} s in vain until {what}")
        time.sleep(poll_seconds)
