"""What makes files outlive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(handle: int, place: int, data: bytes | memoryview) -> None:
    """Write all of it at a place of an open file, or raise."""
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(handle, left, place)  # two gigabytes at most
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left, place = left[written:], place + written
