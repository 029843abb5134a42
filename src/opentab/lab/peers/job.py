"""A peer's program in a process of its own, watched from outside: its memory while it runs, what it says at its end."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from opentab.errors import OpentabError
from opentab.lab.measured_run import SAMPLE_SECONDS, TOTAL, MemoryPeaks
from opentab.lab.peers.outcome import PeerRun


def run_job(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> PeerRun:
    """Run it to its end. Its last line is a PeerRun in JSON; the peak of its memory is filled in here."""
    memory = MemoryPeaks()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as trouble:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=trouble, env=environment)
        try:
            while process.poll() is None:
                memory.sample(process.pid)
                time.sleep(SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        said, complained = (_text(file) for file in (output, trouble))
    if process.returncode != 0:
        raise OpentabError(f"{name} failed: {_reason(complained or said)}")
    run = msgspec.json.decode(said.strip().splitlines()[-1], type=PeerRun)
    return msgspec.structs.replace(run, memory_bytes_max=memory.bytes_max.get(TOTAL, 0))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _reason(text: str) -> str:
    """The line that names the error, where there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return ([*errors, *lines[-1:], "without a word"])[0][:300]
