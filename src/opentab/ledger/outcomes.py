"""What became of lines that were put into the log, by where they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow.dataset as ds

from opentab.core.records import DID_NOT_COUNT, BatchRecord, Spot
from opentab.ledger.journal import Journal


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one line, and in which batch."""

    state: str  # counted, duplicate or rejected
    batch: int
    reason: str | None = None
    detail: str | None = None


class Fates:
    """Waits for lines to be in the journal. For one thread at a time."""

    def __init__(self, spots: Iterable[Spot], *, after: int) -> None:
        """`after` is a batch that was in the journal before the lines were in the log."""
        self._left = {(spot.partition, spot.position) for spot in spots}
        self._seen = after
        self._records: dict[tuple[str, int], BatchRecord] = {}

    def complete(self, journal: Journal) -> bool:
        """Whether the journal holds all of the lines."""
        if journal.position > self._seen:
            for record in journal.batches(after=self._seen):
                for partition, (first, last) in record.taken.items():
                    held = {place for place in self._left if place[0] == partition and first <= place[1] <= last}
                    self._records |= dict.fromkeys(held, record)
                    self._left -= held
                self._seen = record.batch
        return not self._left

    def of(self, journal: Journal, with_id: dict[Spot, bool]) -> dict[Spot, Fate]:
        """What became of each line, once the journal holds all of them; they are given with whether they have an id."""
        by_batch: dict[int, list[Spot]] = {}
        records: dict[int, BatchRecord] = {}
        for spot in with_id:
            record = self._records[spot.partition, spot.position]
            records[record.batch] = record
            by_batch.setdefault(record.batch, []).append(spot)
        fates: dict[Spot, Fate] = {}
        for batch, spots in by_batch.items():
            fates |= _rejected(journal, batch, spots)
            asked = [spot for spot in spots if with_id[spot]] if records[batch].rules.dedupe_us else []
            counted = _counted(journal, batch, asked)
            repeats = {spot for spot in asked if spot not in counted}
            for spot in spots:
                fates.setdefault(spot, Fate("duplicate" if spot in repeats else "counted", batch))
        return fates


def _rejected(journal: Journal, batch: int, spots: list[Spot]) -> dict[Spot, Fate]:
    places = {spot.place: spot for spot in spots}
    table = journal.rejections(after=batch - 1, upto=batch).to_table(
        columns=["place", "reason", "detail"], filter=ds.field("place").isin(list(places))
    )
    return {places[row["place"]]: Fate("rejected", batch, row["reason"], row["detail"]) for row in table.to_pylist()}


def _counted(journal: Journal, batch: int, spots: list[Spot]) -> set[Spot]:
    """Those that the journal remembers as events that counted."""
    if not spots:
        return set()
    numbers = {spot.number for spot in spots}
    table = journal.seen(after=batch - 1, upto=batch).to_table(
        columns=["partition", "number", "byte"],
        filter=(ds.field("payload") != DID_NOT_COUNT) & ds.field("number").isin(list(numbers)),
    )
    return {Spot(*row) for row in zip(*(table[name].to_pylist() for name in Spot._fields), strict=True)}
