"""Every event counts once: which of the events with an id count, and what the others are.

The audit's own reading of ADR 16. Nearly all ids come once and are settled by a count in DuckDB; only the
events of those that come again, and of those that a reversal names, are looked at one by one. Two keys with
the same hash cost a look and decide nothing: they are told apart by what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import duckdb
import pyarrow as pa

from opentab.audit.clock import Lapse, recalled_us
from opentab.audit.rows import FETCH_ROWS, fetched, to_table
from opentab.core.events import Reason

LOG_ORDER = "batch, arrived_us, partition, number, byte"
UNCOUNTED_SCHEMA = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("first_batch", pa.int64())])

Key = tuple[str, str | None]  # an id, and the source where there is one


class KeyedEvent(NamedTuple):
    """An event that has an id or takes another one back."""

    batch: int
    arrived_us: int
    id: str | None
    source: str | None
    reverses: str | None
    at_us: int
    customer: str
    type: str
    amount_micros: int  # what it would count for

    @property
    def values(self) -> tuple[int, str, str, int, str | None]:
        """What makes two events with one key the same. A source is a part of the key."""
        return self.at_us, self.customer, self.type, self.amount_micros, self.reverses


class Memory(NamedTuple):
    """What a batch knows of events that counted: how long, and not those that arrived before an instant."""

    window_us: int
    forgotten_us: int | None
    lapses: tuple[Lapse, ...] = ()  # restarts of the clock before it


class Uncounted(NamedTuple):
    """An event that does not count: a duplicate, or rejected for a reason."""

    reason: Reason | None
    first_batch: int | None  # of the one that counted in its place


@dataclass(slots=True)
class Known:
    """The last event of a key that counted."""

    event: KeyedEvent
    reversed: bool = False


class Once:
    """The rule, over events in the order of the log; it remembers every key that it is shown."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}

    def look(self, event: KeyedEvent, memory: Memory) -> Uncounted | None:
        """None if the event counts, which is then known; else what it is instead."""
        if event.id is not None:
            first = self._recall(memory, event, (event.id, event.source))
            if first is not None:
                same = first.event.values == event.values
                return Uncounted(None if same else Reason.CONFLICTING_DUPLICATE, first.event.batch)
        if event.reverses is not None:
            reason = self._take_back(event, (event.reverses, event.source), memory)
            if reason is not None:
                return Uncounted(reason, None)
        if event.id is not None:
            self._known[event.id, event.source] = Known(event)
        return None

    def repeats(self, event: KeyedEvent, memory: Memory) -> bool:
        """Whether an event with an id that was not rejected is a duplicate; if not, it counts and is then known."""
        key = (event.id or "", event.source)
        first = self._recall(memory, event, key)
        if first is not None and first.event.values == event.values:
            return True
        self._known[key] = Known(event)
        return False

    def _take_back(self, event: KeyedEvent, key: Key, memory: Memory) -> Reason | None:
        """Take the event of the key back; or why that cannot be."""
        original = self._recall(memory, event, key)
        if original is None or original.event.batch >= event.batch:
            return Reason.REVERSAL_UNKNOWN
        counted = original.event
        if counted.values != (event.at_us, event.customer, event.type, -event.amount_micros, None):
            return Reason.REVERSAL_MISMATCH
        if original.reversed:
            return Reason.REVERSAL_TWICE
        original.reversed = True
        return None

    def _recall(self, memory: Memory, event: KeyedEvent, key: Key) -> Known | None:
        """The last event of the key that counted, unless the window behind it has passed or it is forgotten."""
        known = self._known.get(key)
        if known is None:
            return None
        arrived_us = recalled_us(known.event.arrived_us, known.event.batch, memory.lapses)
        if arrived_us is None or event.arrived_us - arrived_us > memory.window_us:
            return None
        if memory.forgotten_us is not None and arrived_us < memory.forgotten_us:
            return None
        return known


def create_keyed(con: duckdb.DuckDBPyConnection) -> None:
    """Make the empty table `keyed`: every event that decodes well and has an id, or takes one back."""
    con.execute(
        "CREATE TABLE keyed (batch BIGINT, arrived_us BIGINT, partition VARCHAR, number BIGINT, byte BIGINT,"
        " id VARCHAR, source VARCHAR, reverses VARCHAR,"
        " at_us BIGINT, day INTEGER, customer VARCHAR, type VARCHAR, amount_micros BIGINT)"
    )


def settle(con: duckdb.DuckDBPyConnection, memories: Mapping[int, Memory]) -> None:
    """Make the table `uncounted` of `keyed`, by what each batch knew: row, reason (NULL: a duplicate), first_batch.

    1. the keys that reversals have or refer to: their events together, in the order of the log
    2. the other keys that come more than once: one after the other, so that memory holds one of them
    """
    con.execute("CREATE TABLE uncounted (row BIGINT, reason VARCHAR, first_batch BIGINT)")
    con.execute(
        """
        CREATE TABLE tangled AS SELECT DISTINCT unnest([hash(reverses, source), hash(id, source)]) AS key_hash
        FROM keyed WHERE reverses IS NOT NULL
        """
    )
    con.execute(
        """
        CREATE TABLE repeated AS SELECT key_hash
        FROM (SELECT hash(id, source) AS key_hash FROM keyed WHERE id IS NOT NULL)
        GROUP BY key_hash HAVING count(*) > 1
        """
    )
    together = "reverses IS NOT NULL OR (id IS NOT NULL AND key_hash IN (SELECT key_hash FROM tangled))"
    once = Once()
    _keep(con, ((row, once.look(event, memories[event.batch])) for _, row, event in _events(con, together, LOG_ORDER)))
    alone = (
        "id IS NOT NULL AND key_hash IN (SELECT key_hash FROM repeated)"
        " AND key_hash NOT IN (SELECT key_hash FROM tangled)"
    )
    _keep(con, _each_key(_events(con, alone, f"key_hash, {LOG_ORDER}"), memories))
    con.execute("DROP TABLE tangled")
    con.execute("DROP TABLE repeated")


def _events(con: duckdb.DuckDBPyConnection, which: str, order: str) -> Iterator[tuple[int, int, KeyedEvent]]:
    """Events with the hash of their key and their row; the connection stays free for others."""
    with con.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT key_hash, row, {", ".join(KeyedEvent._fields)}
            FROM (SELECT *, rowid AS row, hash(id, source) AS key_hash FROM keyed) k
            WHERE {which} ORDER BY {order}
            """
        )
        for key_hash, row, *event in fetched(cursor):
            yield key_hash, row, KeyedEvent._make(event)


def _each_key(
    events: Iterable[tuple[int, int, KeyedEvent]], memories: Mapping[int, Memory]
) -> Iterator[tuple[int, Uncounted | None]]:
    for _, same_hash in groupby(events, key=itemgetter(0)):
        once = Once()
        for _, row, event in same_hash:
            yield row, once.look(event, memories[event.batch])


def _keep(con: duckdb.DuckDBPyConnection, verdicts: Iterable[tuple[int, Uncounted | None]]) -> None:
    """Add the events that do not count to `uncounted`."""
    found: list[tuple[int, str | None, int | None]] = []
    for row, verdict in verdicts:
        if verdict is not None:
            found.append((row, verdict.reason, verdict.first_batch))
            if len(found) == FETCH_ROWS:
                _insert(con, found)
                found = []
    _insert(con, found)


def _insert(con: duckdb.DuckDBPyConnection, found: list[tuple[int, str | None, int | None]]) -> None:
    con.register("found", to_table(found, UNCOUNTED_SCHEMA))
    con.execute("INSERT INTO uncounted SELECT * FROM found")
    con.unregister("found")
