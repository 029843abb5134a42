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


def make_directories(path: Path) -> None:
    """Make a directory and those above it where they are missing; their names are durable on return."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync(made.parent)


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that must not be there yet; it is durable on return."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def write_at(handle: int, place: int, data: bytes | memoryview) -> None:
    """Write all of it at a place of an open file, or raise."""
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(handle, left, place)  # two gigabytes at most
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left, place = left[written:], place + written
