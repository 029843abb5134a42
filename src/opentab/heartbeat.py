"""The pipeline's heartbeat: a small file, rewritten every second, that tells that it lives."""

from __future__ import annotations

import msgspec

from opentab.place import Place

NAME = "heartbeat.json"


class Heartbeat(msgspec.Struct, frozen=True):
    """What the pipeline last said of itself."""

    at_us: int
    run: str
    pid: int
    streaming: bool  # Spark is up and the stream runs
    position: int
    caught_up: bool
    caught_up_us: int | None  # the last moment at which nothing was unread
    unread_segments: int
    invoices_position: int = 0  # all that was due up to this batch has been issued
    unread_unit: str = "segments"  # or messages, where the log is a Kafka topic


def write_heartbeat(ledger: Place, heartbeat: Heartbeat) -> None:
    """Replace the heartbeat; a reader sees the old one or the new one."""
    (ledger / NAME).replace(msgspec.json.encode(heartbeat))


def read_heartbeat(ledger: Place) -> Heartbeat | None:
    """The last heartbeat, or None if there never was one."""
    try:
        return msgspec.json.decode((ledger / NAME).read(), type=Heartbeat)
    except (OSError, msgspec.MsgspecError):
        return None
