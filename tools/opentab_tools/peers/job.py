"""A peer's program in a process of its own, watched from outside: its memory while it runs, what it says at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from opentab.core.errors import OpentabError
from opentab_tools.measuring.measured_run import SAMPLE_SECONDS, TOTAL, MemoryPeaks
from opentab_tools.servers.daemon import Daemon

RUN_SECONDS_MAX = 3600

Said = TypeVar("Said")


def run_job(
    name: str, command: Sequence[str], scratch: Path, environment: Mapping[str, str], kind: type[Said]
) -> tuple[Said, int]:
    """Run it to its end. What its last line says in JSON, and the peak of its memory in bytes."""
    job = Daemon("job", command, scratch, environment)
    memory = MemoryPeaks()
    deadline = time.monotonic() + RUN_SECONDS_MAX
    job.start()
    try:
        while job.runs:
            if time.monotonic() > deadline:
                raise OpentabError(f"{name} was not done in {RUN_SECONDS_MAX} s", hint=f"see {job.log_path}")
            memory.sample(job.pid)
            time.sleep(SAMPLE_SECONDS)
    finally:
        job.kill()
    if job.wait() != 0:
        raise OpentabError(f"{name} failed: {_cause(job)}", hint=f"see {job.log_path}")
    try:
        said = msgspec.json.decode(job.last_words(), type=kind)
    except msgspec.DecodeError as error:
        raise OpentabError(f"{name} said something else than its figures: {job.last_words()[-200:]!r}") from error
    return said, memory.bytes_max.get(TOTAL, 0)


def _cause(job: Daemon) -> str:
    """Java's innermost exception, else the first line that names an error, else the last one."""
    lines = job.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    errors = [line.strip() for line in lines if "Error" in line or "Exception" in line]
    return [*causes[-1:], *errors, job.last_words()][0][:300]
