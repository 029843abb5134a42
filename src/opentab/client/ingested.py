"""What became of the events that a client sent, over all the requests that it took."""

from __future__ import annotations

import msgspec


class Refused(msgspec.Struct, frozen=True):
    """An event that does not count, by its place in what was sent."""

    index: int
    reason: str
    detail: str | None


class Ingested(msgspec.Struct, frozen=True):
    """What became of the events that were sent."""

    accepted: int
    refused: list[Refused]  # not taken into the log
    committed: bool | None = None  # whether all that were accepted are in the journal; None: nobody waited for it
    position: int | None = None  # once they are: a min_position that shows them
    duplicates: list[int] = []  # events that had counted before, by their places
    rejected: list[Refused] = []  # taken into the log, and not billed
