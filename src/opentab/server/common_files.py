"""Where the workers of one server leave what they have in common."""

from __future__ import annotations

from pathlib import Path

# Where the workers count what they did; prometheus-client reads this name.
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# A file there: the server is about to stop.
STOPPING_NAME = "stopping"


def alive_path(directory: Path, pid: int) -> Path:
    """A file that a worker touches every second, as long as it answers."""
    return directory / f"alive-{pid}"
