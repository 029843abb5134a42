"""What the deliverer last said of itself: a small file, rewritten every second while it runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec


class Backlog(msgspec.Struct, frozen=True):
    """What waits to be delivered over HTTP, and why."""

    at_us: int
    pid: int
    position: int  # all invoices up to this batch were taken up
    waiting: int  # all that is not delivered yet
    stuck: int  # of these: refused by the receiver
    delivered: int
    oldest_us: int | None  # since when the first of them waits
    delivered_us: int | None  # the last success
    gone: bool  # the receiver takes nothing
    error: str | None  # the last one, while anything waits


def write_backlog(sinks: Path, backlog: Backlog) -> None:
    """Replace what was said before; a reader sees the old or the new. Where it cannot be written, nobody is told."""
    path = _path(sinks)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        aside.write_bytes(msgspec.json.encode(backlog))
        aside.replace(path)


def read_backlog(sinks: Path) -> Backlog | None:
    """What was said last, or None if nothing ever was."""
    try:
        return msgspec.json.decode(_path(sinks).read_bytes(), type=Backlog)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _path(sinks: Path) -> Path:
    return sinks / "http.json"
