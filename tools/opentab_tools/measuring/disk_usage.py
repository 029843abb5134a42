"""What files weigh."""

from __future__ import annotations

from pathlib import Path

BLOCK_BYTES = 512  # what the system counts a file's room in


def file_bytes(path: Path) -> int:
    """The length of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def disk_bytes(path: Path) -> int:
    """The room that they really take."""
    return sum(file.stat().st_blocks * BLOCK_BYTES for file in path.rglob("*") if file.is_file())
