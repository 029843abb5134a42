"""Batches whose log is gone: the journal's word is taken for them, so that all that followed can be checked."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.audit.ids import PLACE, key_of
from opentab.audit.logs import Logs
from opentab.audit.rows import fetched, to_table
from opentab.core.events import Reason

HASHED_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("batch", pa.int64()),
        ("partition", pa.string()),
        ("number", pa.int64()),
        ("byte", pa.int64()),
        ("key_high", pa.int64()),
        ("key_low", pa.int64()),
    ]
)


def in_gone(logs: Logs) -> str:
    """The condition that a batch is one of them."""
    return " OR ".join(f"batch BETWEEN {stretch.first} AND {stretch.last}" for stretch in logs.gone) or "false"


def trust_ids(con: duckdb.DuckDBPyConnection, logs: Logs, seen: ds.Dataset) -> None:
    """Set right in `uncounted` what repeats or takes back an event of a log that is gone.

    The journal remembers such an event by the hash of its id. Only events that the journal judged otherwise than the
    recount are hashed and looked up.
    """
    if not logs.gone:
        return
    con.register("seen_ids", seen)
    con.execute("CREATE TEMP VIEW events AS SELECT *, rowid AS row FROM keyed")
    con.execute("CREATE TEMP VIEW counting_ids AS SELECT * FROM seen_ids WHERE payload <> 0")
    con.execute(f"CREATE TEMP VIEW gone_ids AS SELECT * FROM counting_ids WHERE {in_gone(logs)}")
    _hash(con, "id", f"ANTI JOIN uncounted u ON u.row = e.row ANTI JOIN counting_ids s ON {_same('s', 'e')}")
    con.execute(
        f"""
        INSERT INTO uncounted
        SELECT h.row, if(bool_or(r.batch IS NULL), NULL, '{Reason.CONFLICTING_DUPLICATE}'), max(g.batch)
        FROM hashed h JOIN gone_ids g ON g.key_high = h.key_high AND g.key_low = h.key_low
        LEFT JOIN seen_ids r ON {_same("r", "h")} AND r.payload = 0
        GROUP BY h.row
        """
    )
    unknown = f"SEMI JOIN uncounted u ON u.row = e.row AND u.reason = '{Reason.REVERSAL_UNKNOWN}'"
    _hash(con, "reverses", f"{unknown} SEMI JOIN counting_ids s ON {_same('s', 'e')}")
    con.execute(
        """
        DELETE FROM uncounted WHERE row IN
            (SELECT h.row FROM hashed h JOIN gone_ids g ON g.key_high = h.key_high AND g.key_low = h.key_low)
        """
    )
    for view in ("gone_ids", "counting_ids", "events"):
        con.execute(f"DROP VIEW {view}")
    con.unregister("hashed")
    con.unregister("seen_ids")


def trust_rows(con: duckdb.DuckDBPyConnection, logs: Logs) -> None:
    """Add the journal's entries and rejections of those batches to the recount."""
    gone = in_gone(logs)
    con.execute(
        "INSERT INTO recounted SELECT batch, day, customer, type, amount_micros, event_count,"
        f" epoch_us(first_at), epoch_us(last_at) FROM journal_entries WHERE {gone}"
    )
    con.execute(f"INSERT INTO refused SELECT batch, place, reason, raw, '', 0, 0 FROM journal_rejections WHERE {gone}")


def _hash(con: duckdb.DuckDBPyConnection, column: str, joins: str) -> None:
    """Make the table `hashed` of some events: the key that the journal knows their id by, or the id they take back."""
    columns = ", ".join(f"e.{name}" for name in ("row", *PLACE, column, "source"))
    found = fetched(con.execute(f"SELECT {columns} FROM events e {joins} WHERE e.{column} IS NOT NULL"))
    rows = [(*row, *key_of(id_, source)) for *row, id_, source in found]
    con.register("hashed", to_table(rows, HASHED_SCHEMA))


def _same(left: str, right: str) -> str:
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in PLACE)
