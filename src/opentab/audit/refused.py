"""The lines of the log that are no part of any bill: each with its reason, its bytes and its place."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import duckdb
import pyarrow as pa

from opentab.audit.facts import Recomputed
from opentab.audit.logs import Logs
from opentab.audit.raw import RawLog
from opentab.audit.rows import fetched, to_table
from opentab.core.errors import LogError
from opentab.core.records import BatchRecord

REFUSED_SCHEMA = pa.schema(
    [
        ("batch", pa.int64()),
        ("place", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
        ("partition", pa.string()),
        ("number", pa.int64()),
        ("byte", pa.int64()),
    ]
)


class Refused(NamedTuple):
    """A line that was not billed, as REFUSED_SCHEMA has it."""

    batch: int
    place: str
    reason: str
    raw: bytes
    partition: str
    number: int
    byte: int


def create_refused(con: duckdb.DuckDBPyConnection) -> None:
    """Make the empty table `refused`."""
    con.execute(
        "CREATE TABLE refused (batch BIGINT, place VARCHAR, reason VARCHAR, raw BLOB,"
        " partition VARCHAR, number BIGINT, byte BIGINT)"
    )


def refuse_keyed(
    con: duckdb.DuckDBPyConnection, logs: Logs, batches: Sequence[BatchRecord], result: Recomputed
) -> None:
    """Add the events that decode well and are rejected all the same to `refused`, read once more for their bytes."""
    taken = {record.batch: record.taken for record in batches}
    with con.cursor() as cursor:
        cursor.execute(
            """
            SELECT batch, partition, number, byte, reason
            FROM keyed JOIN uncounted ON keyed.rowid = uncounted.row
            WHERE reason IS NOT NULL ORDER BY batch, partition
            """
        )
        for (batch, partition), rows in groupby(fetched(cursor), key=itemgetter(0, 1)):
            reasons = {(number, byte): reason for _, _, number, byte, reason in rows}
            log = logs.of(batch)
            if log is not None:
                refused = _read_again(log, batch, partition, taken[batch][partition], reasons, result)
                insert_refused(con, refused, result)


def _read_again(
    log: RawLog,
    batch: int,
    partition: str,
    taken: tuple[int, int],
    reasons: Mapping[tuple[int, int], str],
    result: Recomputed,
) -> Iterator[Refused]:
    """The lines at some places of one partition; only the pieces of the log that hold one are read."""
    numbers = sorted({number + log.base for number, _ in reasons})
    for first, last in log.pieces(*taken):
        wanted = numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
        if not wanted:
            continue
        try:
            raw = log.read(partition, wanted[0], wanted[-1])
        except LogError as error:
            result.troubles.append((batch, error.fact))
            continue
        for index, place in enumerate(zip(raw.numbers.tolist(), raw.bytes_at.tolist(), strict=True)):
            if place in reasons:
                yield Refused(batch, raw.place(index), reasons[place], raw.line(index), partition, *place)


def insert_refused(con: duckdb.DuckDBPyConnection, refused: Iterable[Refused], result: Recomputed) -> None:
    """Add lines to `refused`, and to what the batches rejected."""
    rows = list(refused)
    for row in rows:
        result.facts[row.batch].rejections[row.reason] += 1
    if rows:
        con.register("new_refused", to_table(rows, REFUSED_SCHEMA))
        con.execute("INSERT INTO refused SELECT * FROM new_refused")
        con.unregister("new_refused")
