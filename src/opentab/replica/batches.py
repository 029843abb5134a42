"""What a replica remembers of the last batches: short, for those who watch the pipeline work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from opentab.core.records import BatchRecord, TaskTimes
from opentab.replica.store import Change, Snapshot

BATCHES_MAX = 1_000
NUMBER_BYTES = 8


class BatchSummary(msgspec.Struct, frozen=True):
    """One batch."""

    batch: int
    started_us: int
    committed_us: int
    events: int
    late_events: int
    rejections: int
    input_bytes: int
    files: int
    steps_ms: dict[str, float]
    watermark_us: int | None
    duplicates: int = 0
    run: str = ""
    times: TaskTimes | None = None


def keep_batches(change: Change, new: Sequence[BatchRecord]) -> None:
    """Take up new batches, and forget those that are too old."""
    if not new:
        return
    kept = new[-BATCHES_MAX:]
    change.put("batches", [(_key(record.batch), msgspec.json.encode(_summary(record))) for record in kept])
    for _ in change.take_out("batches", _key(max(0, new[-1].batch - BATCHES_MAX))):
        pass


def last_batches(snapshot: Snapshot, position: int, limit: int) -> Iterator[BatchSummary]:
    """The last batches up to a position, in order."""
    for _, value in snapshot.scan("batches", b"", after=_key(max(0, position - limit))):
        yield msgspec.json.decode(value, type=BatchSummary)


def _key(batch: int) -> bytes:
    return batch.to_bytes(NUMBER_BYTES, "big")


def _summary(record: BatchRecord) -> BatchSummary:
    return BatchSummary(
        batch=record.batch,
        started_us=record.started_us,
        committed_us=record.committed_us,
        events=record.event_count,
        late_events=record.late_events,
        rejections=record.rejection_count,
        input_bytes=record.input_bytes,
        files=record.file_count,
        steps_ms=record.steps_ms,
        watermark_us=record.watermark_us,
        duplicates=record.duplicates,
        run=record.run,
        times=record.times,
    )
