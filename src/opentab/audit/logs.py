"""Which log each batch was billed from: a ledger can be moved to another one (`opentab log adopt`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentab.audit.raw import RawLog, open_raw
from opentab.core.errors import ConfigError, LogError
from opentab.core.records import BatchRecord, Start
from opentab.runtime.config import Home


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches that were billed from one log."""

    first: int
    last: int
    adopted: Start | None  # where the first one began to read the log; None: the ledger's first log
    log_id: str | None  # None: written by a version that stored none
    log_uri: str | None
    log: RawLog | None  # None: it is gone, or does not answer

    @property
    def sentence(self) -> str:
        """That these batches cannot be recomputed."""
        batches = f"batch {self.first}" if self.first == self.last else f"batches {self.first} to {self.last}"
        if self.log_id is not None and self.log_id.startswith("source:"):
            log = f"{self.log_id.removeprefix('source:')!r}, is a source of its own that the audit cannot read"
            return f"{batches} cannot be recomputed: their log, {log}"
        where = f", last at {self.log_uri!r}," if self.log_uri else ""
        log = f"log {self.log_id or 'without an id'}{where}"
        return f"{batches} cannot be recomputed: their {log} is gone or cannot be read"


class Logs:
    """The logs of a ledger's batches."""

    def __init__(self, current: RawLog, stretches: Sequence[Stretch] = ()) -> None:
        """Without stretches all batches are of the current log, the one that the home's settings name."""
        self.current = current
        self._stretches = stretches
        self._firsts = [stretch.first for stretch in stretches]

    @property
    def gone(self) -> list[Stretch]:
        """The batches whose log is gone."""
        return [stretch for stretch in self._stretches if stretch.log is None]

    @property
    def is_current(self) -> bool:
        """Whether the last batch was billed from the log that the home's settings name."""
        return not self._stretches or self._stretches[-1].log is self.current

    def of(self, batch: int) -> RawLog | None:
        """The log that a batch was billed from; None if that is gone."""
        at = bisect_right(self._firsts, batch) - 1
        return self._stretches[at].log if at >= 0 else self.current


def open_logs(home: Home, batches: Sequence[BatchRecord]) -> Logs:
    """Find the log of every batch: by its id where batches name one, in all places that the journal and the home name.

    Where a ledger went on in another log at the same offsets, that log holds the earlier events, too.
    """
    current = open_raw(home)
    places: dict[str, RawLog | None] = {home["log.uri"]: current}
    for record in batches:
        if record.log_uri is not None and record.log_uri not in places:
            places[record.log_uri] = _raw_at(home, record.log_uri)
    found: list[Stretch] = []
    for records in reversed(_stretches(batches)):
        last = max(records, key=lambda record: (record.log_id is not None, record.batch))
        log: RawLog | None
        if last.log_id is not None:
            log = _with_id(last.log_id, current, places)
        elif last.log_uri is not None:
            log = places[last.log_uri]
        else:
            log = None if found else current
        if log is None and found and found[-1].adopted == "same_offsets":
            log = found[-1].log
        first = records[0]
        found.append(Stretch(first.batch, records[-1].batch, first.adopted, last.log_id, last.log_uri, log))
    taking = {record.batch for record in batches if record.taken}
    needed = [s.log is not None or any(s.first <= batch <= s.last for batch in taking) for s in found]
    # Of batches that took nothing any log will do: nothing of it is read.
    stretches = [s if is_needed else replace(s, log=current) for s, is_needed in zip(found, needed, strict=True)]
    return Logs(current, stretches[::-1])


def _stretches(batches: Sequence[BatchRecord]) -> list[list[BatchRecord]]:
    stretches: list[list[BatchRecord]] = []
    for record in batches:
        if record.adopted is not None or not stretches:
            stretches.append([])
        stretches[-1].append(record)
    return stretches


def _with_id(log_id: str, current: RawLog, places: dict[str, RawLog | None]) -> RawLog | None:
    for log in places.values():
        try:
            if log is not None and log.id() == log_id:
                return log
        except LogError:
            if log is current:
                raise  # its brokers do not answer: that is not gone
    return None


def _raw_at(home: Home, uri: str) -> RawLog | None:
    try:
        return open_raw(home.with_setting("log.uri", uri))
    except ConfigError:
        return None
