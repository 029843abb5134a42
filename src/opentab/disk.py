"""What makes files outlive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    _sync(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
