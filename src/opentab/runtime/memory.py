"""What a process that works batch by batch does with its memory: it keeps what it has for the next batch."""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
import time

import pyarrow as pa

# Of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_NEVER = 2**31 - 1
_STEP_BYTES = 64 << 20


def keep_memory() -> None:
    """Let what is freed be used again instead of given back.

    A column of some hundred thousand rows lives for milliseconds. Given back each time, its pages would be asked for
    and cleared by the kernel again and again: a fifth of all that a task does.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "gnu_get_libc_version"):
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
            libc.mallopt(_TOP_PAD, _STEP_BYTES)
            pa.set_memory_pool(pa.system_memory_pool())


def keep_modules() -> None:
    """Spare the garbage collector a look at all that has been loaded so far: it stays until the end."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


class CollectorClock:
    """Measures how long Python's garbage collector works in this process, from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0
        gc.callbacks.append(self._see)

    def _see(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began
