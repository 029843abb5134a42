"""A follower that begins anew, in a process of its own: python -m opentab_tools.bench.catch_up HOME [--one-core].

It prints what that took as JSON. Nothing else runs in this process, so its memory is the follower's.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from opentab.core.errors import OpentabError
from opentab.replica.follower import Follower
from opentab.runtime import config
from opentab.runtime.config import Home

ONE_CORE = "--one-core"


class CatchUp(msgspec.Struct, frozen=True):
    """What it took to bring a replica to the ledger's position."""

    seconds: float
    position: int
    batches: int  # folded one by one, behind the balances
    memory_bytes_max: int


def measure_catch_up(home: Home, *, one_core: bool = False) -> CatchUp:
    """Let a new process bring a home's replica to the ledger's position."""
    command = [sys.executable, "-m", "opentab_tools.bench.catch_up", str(home.path), *([ONE_CORE] if one_core else [])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise OpentabError(f"the measured follower failed: {said[-1] if said else done.returncode}")
    return msgspec.json.decode(done.stdout, type=CatchUp)


def catch_up(home: Home) -> CatchUp:
    """Fold all that there is."""
    began = time.perf_counter()
    follower = Follower(home)
    position = batches = 0
    while (step := follower.step()) is not None:
        position = step.position
        batches += step.batches
    follower.close()
    return CatchUp(time.perf_counter() - began, position, batches, _memory_bytes_max())


def _memory_bytes_max() -> int:
    # The kernel lets a process begin with the peak of the one that started it, and that one may have been large.
    # Where it also keeps the peak of this program alone, that is the better one.
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if ONE_CORE in sys.argv:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.stdout.write(msgspec.json.encode(catch_up(config.load(Path(sys.argv[1])))).decode())
