"""What a figure was measured on: it means nothing without."""

from __future__ import annotations

import os
import platform
import statistics
import time
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from opentab.runtime.java import find_java

PACKAGES = ("opentab", "pyspark", "pyarrow", "deltalake")
YARDSTICK_NUMBERS, YARDSTICK_TIMES = 1_000_000, 9


def describe_machine() -> dict[str, Any]:
    """Processor, memory and versions, as JSON."""
    return {
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_model": _cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "java": str(find_java().version),
            **{name: version(name) for name in PACKAGES},
        },
    }


def yardstick_ms() -> float:
    """How long a fixed piece of work takes on one core now: on a shared machine it tells a slow hour from slow code."""
    numbers = np.random.default_rng(1).integers(0, 2**63, YARDSTICK_NUMBERS)
    taken = []
    for _ in range(YARDSTICK_TIMES):
        began = time.perf_counter()
        zlib.crc32(np.sort(numbers, kind="stable").data)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


class MachineLoad:
    """What the machine was busy with since this was made."""

    def __init__(self) -> None:
        self.at_first = os.getloadavg()[0]
        self.yardstick_ms = yardstick_ms()
        self._times = psutil.cpu_times()

    def so_far(self) -> dict[str, Any]:
        """At first and now: the load, and how long the yardstick takes; in between: shares of all cores' time."""
        now, load = psutil.cpu_times(), os.getloadavg()[0]
        spent = {name: value - getattr(self._times, name) for name, value in now._asdict().items()}
        # What guests took is in what their host took.
        whole = sum(value for name, value in spent.items() if not name.startswith("guest")) or 1.0
        idle = spent["idle"] + spent.get("iowait", 0.0)
        stolen = spent.get("steal", 0.0)  # by other machines on the same processor, as far as it is told
        return {
            "load": [round(self.at_first, 2), round(load, 2)],
            "yardstick_ms": [round(self.yardstick_ms, 2), round(yardstick_ms(), 2)],
            "busy_share": round((whole - idle - stolen) / whole, 4),
            "stolen_share": round(stolen / whole, 4),
        }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
