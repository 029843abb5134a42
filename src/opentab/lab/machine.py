"""What a figure was measured on: it means nothing without."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from opentab.java import find_java

PACKAGES = ("opentab", "pyspark", "pyarrow", "deltalake")


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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
