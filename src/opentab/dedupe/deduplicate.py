"""Deduplication as a task calls it: of the events with one id, one counts within the window (ADR 16).

decoded lines ──► columns.py: candidates ──► rule.py: which of them count ──► what counts, and rows for the index
                                                  ▲
                                   index.py: what counted in earlier batches
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from opentab.core.periods import Int64s
from opentab.core.records import ClockRestart
from opentab.dedupe.columns import PartitionEvents, candidates_of, index_rows, outcomes_of
from opentab.dedupe.index import RunColumns
from opentab.dedupe.rule import decide
from opentab.log.line_block import LineBlock
from opentab.wire.decode import Decoded
from opentab.wire.reference import Refusal


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """What became of some lines of one partition."""

    blocks: list[LineBlock]
    counted: Decoded
    accepted_at_us: Int64s  # the times of all events that were not refused; repeats are among them
    refusals: list[tuple[int, Refusal]]  # by line
    duplicates: int
    without_id: int
    refused_reversals: list[tuple[int, int]]  # their own keys


def deduplicate(
    decoded: Sequence[tuple[Decoded, list[LineBlock]]], known: Sequence[RunColumns], *,
    batch: int, window_us: int, forgotten_us: int | None, restarts: Sequence[ClockRestart],
) -> tuple[list[Deduplicated], pa.Table]:  # fmt: skip
    """What becomes of a task's events, given what counted in earlier batches; and what the index gets of them."""
    parts = [PartitionEvents(one, blocks) for one, blocks in decoded]
    candidates = candidates_of(parts)
    decided = decide(candidates, known, batch=batch, window_us=window_us, forgotten_us=forgotten_us, restarts=restarts)
    outcomes = outcomes_of(parts, decided)
    found = [
        Deduplicated(
            blocks=part.blocks,
            counted=part.decoded.keep(outcome.counts),
            accepted_at_us=part.decoded.at_us[~outcome.refused],
            refusals=outcome.refusals,
            duplicates=outcome.duplicates,
            without_id=int((outcome.counts & ~part.identity.has_key).sum()),
            refused_reversals=part.refused_reversals(outcome),
        )
        for part, outcome in zip(parts, outcomes, strict=True)
    ]
    return found, index_rows(parts, candidates, decided, outcomes, batch=batch)
