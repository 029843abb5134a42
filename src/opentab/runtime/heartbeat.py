"""The pipeline's heartbeat: a small file, rewritten every second, that tells that it lives."""

from __future__ import annotations

import zlib

import msgspec

from opentab.runtime.storage import Place

NAME = "heartbeat.json"
DRIVER = "the driver"


class Collecting(msgspec.Struct, frozen=True):
    """The Java process of Spark's that spent the largest share of its time on garbage collection, lately."""

    where: str  # the driver, or an executor by its number; and its machine
    share: float


class Work(msgspec.Struct, frozen=True):
    """How the pipeline works: what it knows besides the batches, for those who ask why they are slow."""

    master: str  # of Spark
    pause_ms: float
    pause_min_ms: float
    compact_files: int
    small_files: int | None = None  # of the journal; None: not counted yet
    collecting: Collecting | None = None  # None: not asked, or Spark's UI is switched off


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
    held_back: int = 0  # partitions of the log that go on with an arrival ahead of the pipeline's clock
    trouble: str | None = None  # what keeps the pipeline from going on, and what to do about it
    spark_ui: str | None = None  # where Spark's own UI is
    work: Work | None = None  # None: written by an earlier version
    billing_ms: float | None = None  # how long the batch under way has taken so far; None: there is none
    median_ms: float = 0.0  # of the batches of this run
    crc32: int | None = None  # of the same without it; None: written by an earlier version


def write_heartbeat(ledger: Place, heartbeat: Heartbeat) -> None:
    """Replace the heartbeat; a reader sees the old one or the new one."""
    sealed = msgspec.structs.replace(heartbeat, crc32=_checksum(heartbeat))
    (ledger / NAME).replace(msgspec.json.encode(sealed))


def read_heartbeat(ledger: Place) -> Heartbeat | None:
    """The last heartbeat, or None if there never was one, or it is damaged."""
    try:
        return look_at_heartbeat(ledger)
    except OSError:
        return None


def look_at_heartbeat(ledger: Place) -> Heartbeat | None:
    """The same; raises OSError where the ledger does not answer."""
    try:
        found = msgspec.json.decode((ledger / NAME).read(), type=Heartbeat)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.crc32 in (None, _checksum(found)) else None


def _checksum(heartbeat: Heartbeat) -> int:
    return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(heartbeat, crc32=None)))
