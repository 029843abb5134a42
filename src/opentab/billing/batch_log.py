"""Logs what was committed: one line every few seconds at most, which sums up all batches since the one before."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

from opentab.core.periods import format_us
from opentab.core.records import BatchRecord
from opentab.runtime.logs import fields

LINE_SECONDS = 5.0

logger = logging.getLogger("opentab.billing")


class BatchLog:
    """Batches that were committed, until a line tells of them. No batch is in none, and none is in two."""

    def __init__(self) -> None:
        self._untold: list[BatchRecord] = []
        self._told_at = float("-inf")
        self._lock = threading.Lock()

    def committed(self, record: BatchRecord) -> None:
        """Take note of one more batch."""
        with self._lock:
            self._untold.append(record)
        self.tell_due()

    def tell_due(self) -> None:
        """Log what was committed, unless the last line was written a moment ago."""
        if time.monotonic() - self._told_at >= LINE_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Log what was committed."""
        with self._lock:
            if not self._untold:
                return
            records, self._untold, self._told_at = self._untold, [], time.monotonic()
            rejections: Counter[str] = Counter()
            for record in records:
                rejections.update(record.rejections)
            told = fields(
                first_batch=records[0].batch,
                batch=records[-1].batch,
                events=sum(record.event_count for record in records),
                late=sum(record.late_events for record in records),
                duplicates=sum(record.duplicates for record in records),
                rejections=dict(sorted(rejections.items())),
                watermark=format_us(records[-1].watermark_us),
                seconds=round((records[-1].committed_us - records[0].started_us) / 1_000_000, 3),
            )
            logger.info("batches committed", extra=told)
