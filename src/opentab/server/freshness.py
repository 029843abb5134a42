"""How fresh an answer is: a quiet log is not stale, a dead pipeline is."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from opentab.heartbeat import Heartbeat
from opentab.periods import format_us
from opentab.records import BatchRecord
from opentab.replica.store import Meta


@dataclass(frozen=True, slots=True)
class Freshness:
    """What every answer carries."""

    position: int
    invoices_position: int
    watermark_us: int | None
    as_of_us: int | None  # when that batch was committed
    staleness_ms: int | None  # None: nothing is known of the log yet

    def as_json(self) -> dict[str, object]:
        return {
            "position": self.position,
            "invoices_position": self.invoices_position,
            "watermark": format_us(self.watermark_us),
            "as_of": format_us(self.as_of_us),
            "staleness_ms": self.staleness_ms,
        }


def freshness_of(meta: Meta | None, heartbeat: Heartbeat | None, now_us: int) -> Freshness:
    """How fresh a replica's answer is at this moment.

    It is known to be caught up with the log at the last moment at which the pipeline had read all of it,
    if the replica has all that the pipeline had committed by then; else when its own batch was committed.
    """
    if meta is None or meta.record is None:
        caught_up_us = heartbeat.caught_up_us if heartbeat and heartbeat.position == 0 else None
        return Freshness(0, 0, None, None, _age_ms(caught_up_us, now_us))
    record = msgspec.json.decode(meta.record, type=BatchRecord)
    caught_up_us = record.committed_us
    if heartbeat is not None and heartbeat.caught_up_us is not None and meta.position >= heartbeat.position:
        caught_up_us = max(caught_up_us, heartbeat.caught_up_us)
    return Freshness(
        position=meta.position,
        invoices_position=meta.invoices_position,
        watermark_us=record.watermark_us,
        as_of_us=record.committed_us,
        staleness_ms=_age_ms(caught_up_us, now_us),
    )


def _age_ms(at_us: int | None, now_us: int) -> int | None:
    return None if at_us is None else max(0, (now_us - at_us) // 1000)
