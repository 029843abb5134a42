"""A server of others: a process group of its own that can be killed at any moment, and ends with us at the latest."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from opentab.core.errors import MachineError
from opentab.runtime.parent import end_with_parent

END_SECONDS_MAX = 20


class Daemon:
    """A command that runs in the background; its output is appended to `{name}.log` in a directory."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.directory = directory
        self.log_path = directory / f"{name}.log"
        self._command = [*command]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of its process, and of its process group."""
        if self._process is None:
            raise MachineError(f"{self.name} was not started")
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, if it does not run; it is up to the caller to wait until it is ready."""
        if self.runs:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509  (system calls alone, no lock)
            )

    def wait_until(self, ready: Callable[[], bool], *, seconds_max: float) -> None:
        """Wait until it is ready; raise if it ends first, or if it takes too long."""
        deadline = time.monotonic() + seconds_max
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise MachineError(f"{self.name} was not ready in {seconds_max:g} s", hint=f"see {self.log_path}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise if it has ended."""
        if not self.runs:
            raise MachineError(f"{self.name} ended: {self.last_words()}", hint=f"see {self.log_path}")

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._process.wait() if self._process is not None else 0

    def kill(self) -> None:
        """SIGKILL for it and all of its own; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Ask it to end; who does not in time is killed."""
        if self._process is not None and self.runs:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=END_SECONDS_MAX)
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all of its own."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def last_words(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"
