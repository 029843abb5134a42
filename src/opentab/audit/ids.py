"""What the journal remembers of ids, held against the events that counted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from opentab.audit.check import SAMPLES_MAX, Check, Tally, count, instant, shown
from opentab.audit.clock import own_restart, remembered_sql
from opentab.audit.facts import Recomputed
from opentab.audit.forgotten import recorded_forgotten
from opentab.audit.murmur import murmur
from opentab.audit.rows import to_table
from opentab.core.records import BatchRecord

KEYS_SAMPLED = 1000
PLACE = ("batch", "partition", "number", "byte")
LONG_BYTES = 512  # longer texts have another hash
SCHEMA_MARK = pa.schema(
    [
        ("batch", pa.int64()),
        ("partition", pa.string()),
        ("number", pa.int64()),
        ("byte", pa.int64()),
        ("key_high", pa.int64()),
        ("key_low", pa.int64()),
    ]
)


def check_ids(con: duckdb.DuckDBPyConnection, batches: Sequence[BatchRecord], recount: Recomputed) -> Check:
    """Compare the rows of `journal_seen` with the tables of the recount.

    1. every event with an id that counted has its row, unless it is forgotten by now
    2. every row that says so is of an event that counted, or of a duplicate in the same batch, and is there once
    3. a row of an event that did not count is of one that was rejected, or of a duplicate in the same batch
    4. the keys of some rows are those of their ids
    5. each batch says up to where it has forgotten
    """
    tally = Tally("ids")
    _compare_forgotten(tally, batches, recount)
    if not any(record.rules.dedupe_us for record in batches):
        rows = count(con, "SELECT count(*) FROM journal_seen")
        if rows:
            tally.differ(f"the journal remembers {rows} ids, and every event counts")
        return tally.done("dedupe is off")
    last = batches[-1].batch
    remembers = remembered_sql(recount.lapses[last], recount.forgotten_us[last])
    con.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW remembered AS
        SELECT batch, partition, number, byte, arrived_us, id, source,
            uncounted.row IS NULL AS counts, uncounted.row IS NULL AND {remembers} AS needed
        FROM keyed LEFT JOIN uncounted ON keyed.rowid = uncounted.row
        WHERE id IS NOT NULL AND (uncounted.row IS NULL OR (reason IS NULL AND first_batch = batch))
        """
    )
    con.register("marks", to_table(_marks(con), SCHEMA_MARK))
    con.execute(
        f"""
        CREATE OR REPLACE TEMP VIEW seen AS
        SELECT * FROM journal_seen s ANTI JOIN marks m
            ON {_same("s", "m")} AND s.key_high = m.key_high AND s.key_low = m.key_low
        WHERE payload IS DISTINCT FROM 0
        """
    )
    tally.compared = count(con, "SELECT count(*) FROM remembered WHERE counts")
    _compare_rows(con, tally)
    _find_doubled(con, tally)
    _find_not_rejected(con, tally)
    _compare_keys(con, tally)
    con.execute("DROP VIEW remembered")
    con.execute("DROP VIEW seen")
    con.unregister("marks")
    del tally.samples[SAMPLES_MAX:]
    return tally.done()


def _marks(con: duckdb.DuckDBPyConnection) -> list[tuple[int, str, int, int, int, int]]:
    """The rows that say of an id that it was reversed: they stand where the reversal does, under a key of their own."""
    rows = con.execute(
        f"SELECT {', '.join(PLACE)}, reverses, source FROM keyed ANTI JOIN uncounted ON keyed.rowid = uncounted.row"
        " WHERE reverses IS NOT NULL"
    ).fetchall()
    return [(*place, *key_of(reverses, source, reversal=True)) for *place, reverses, source in rows]


def _compare_forgotten(tally: Tally, batches: Sequence[BatchRecord], recount: Recomputed) -> None:
    for record in batches:
        log_us, journal_us = recount.forgotten_us[record.batch], recorded_forgotten(record)
        if journal_us != log_us:
            what = f"batch {record.batch}, the arrival before which ids are forgotten"
            tally.compare(what, journal=instant(journal_us), log=instant(log_us))
        own = own_restart(record)
        if own is not None and own.forgotten_us != recount.forgotten_us.get(record.batch - 1):
            tally.differ(f"batch {record.batch} restarts the clock and names another moment of forgetting before it")


def _compare_rows(con: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE different AS
        SELECT {", ".join(f"coalesce(s.{name}, r.{name}) AS {name}" for name in PLACE)},
            s.batch IS NOT NULL AS in_journal, r.batch IS NOT NULL AS in_log,
            s.arrived_us AS journal_us, r.arrived_us AS log_us
        FROM seen s FULL OUTER JOIN remembered r ON {_same("s", "r")}
        WHERE r.batch IS NULL OR (s.batch IS NULL AND r.needed) OR s.arrived_us <> r.arrived_us
        """
    )
    tally.differences += count(con, "SELECT count(*) FROM different")
    tally.compared += count(con, "SELECT count(*) FROM different WHERE NOT in_log")
    rows = con.execute(
        f"SELECT {', '.join(PLACE)}, in_journal, in_log, journal_us, log_us FROM different"
        f" ORDER BY ALL LIMIT {SAMPLES_MAX}"
    ).fetchall()
    for *place, in_journal, in_log, journal_us, log_us in rows:
        if in_journal and in_log:
            says = f"the journal says that it arrived at {shown(instant(journal_us))}, the log {shown(instant(log_us))}"
        elif in_log:
            says = "it counted, and the journal does not remember its id"
        else:
            says = "the journal remembers an id that did not count there"
        tally.samples.append(f"{_where(place)}: {says}")
    con.execute("DROP TABLE different")


def _find_doubled(con: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    doubled = f"SELECT {', '.join(PLACE)}, count(*) FROM seen GROUP BY {', '.join(PLACE)} HAVING count(*) > 1"
    tally.differences += count(con, f"SELECT count(*) FROM ({doubled})")
    for *place, times in con.execute(f"{doubled} ORDER BY ALL LIMIT {SAMPLES_MAX}").fetchall():
        tally.samples.append(f"{_where(place)}: the journal remembers its id {times} times")


def _find_not_rejected(con: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    wrong = (
        f"FROM journal_seen s ANTI JOIN refused r ON {_same('s', 'r')}"
        f" ANTI JOIN remembered d ON {_same('s', 'd')} AND NOT d.counts WHERE payload = 0"
    )
    tally.compared += count(con, "SELECT count(*) FROM journal_seen WHERE payload = 0")
    tally.differences += count(con, f"SELECT count(*) {wrong}")
    rows = con.execute(f"SELECT {', '.join(PLACE)} {wrong} ORDER BY ALL LIMIT {SAMPLES_MAX}").fetchall()
    for place in rows:
        tally.samples.append(f"{_where(place)}: the journal says that an event with an id did not count there")


def _compare_keys(con: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE sampled AS"
        f" SELECT * FROM seen USING SAMPLE reservoir({KEYS_SAMPLED} ROWS) REPEATABLE (1)"
    )
    rows = con.execute(
        f"SELECT {', '.join(f's.{name}' for name in PLACE)}, key_high, key_low, r.id, r.source"
        f" FROM sampled s JOIN keyed r ON {_same('s', 'r')} ORDER BY ALL"
    ).fetchall()
    for *place, high, low, id_, source in rows:
        if {high, low} != set(key_of(id_, source)):
            tally.differ(f"{_where(place)}: the journal remembers it under a key that is not of the id {id_!r}")
    con.execute("DROP TABLE sampled")


def key_of(id_: str, source: str | None, *, reversal: bool = False) -> tuple[int, int]:
    """The key that the journal remembers an id by."""
    text = (id_ if source is None else f"{len(source)}:{source}{id_}").encode()
    seed = 2 * reversal + (source is not None)
    if len(text) < LONG_BYTES:
        return murmur(text, seed)
    digest = hashlib.blake2b(text, digest_size=16, salt=bytes([seed])).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)


def _same(left: str, right: str) -> str:
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in PLACE)


def _where(place: Sequence[object]) -> str:
    batch, partition, number, byte = place
    return f"batch {batch}, log partition {partition!r}, number {number}, byte {byte}"
