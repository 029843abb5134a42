"""Two relations with the same columns, row against row."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from opentab.audit.check import count


def find_differences(
    con: duckdb.DuckDBPyConnection, *, ledger: str, log: str, key: Sequence[str], facts: Sequence[str]
) -> None:
    """Make the table `different`: the rows that only one side has, or with other facts, or twice in the ledger.

    Its columns are the key, `in_ledger`, `in_log`, `times`, and the facts as `ledger_…` and `log_…`. In the
    log a key stands once. All is compared and next to nothing kept: there may be tens of millions of rows.
    """
    same = " AND ".join(f"l.{name} = r.{name}" for name in key)
    sides = ", ".join(f"l.{name} AS ledger_{name}, r.{name} AS log_{name}" for name in facts)
    changed = " OR ".join(f"l.{name} IS DISTINCT FROM r.{name}" for name in facts)
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE different AS
        SELECT {", ".join(f"coalesce(l.{name}, r.{name}) AS {name}" for name in key)}, {sides},
            l.is_there IS NOT NULL AS in_ledger, r.is_there IS NOT NULL AS in_log, CAST(1 AS BIGINT) AS times
        FROM (SELECT *, true AS is_there FROM {ledger}) l
        FULL OUTER JOIN (SELECT *, true AS is_there FROM {log}) r ON {same}
        WHERE {changed} OR l.is_there IS NULL OR r.is_there IS NULL
        """
    )
    # A row that stands there twice meets the same row of the log twice: only then the numbers do not match.
    met = count(con, f"SELECT count(*) FROM {ledger}") - count(con, "SELECT count(*) FROM different WHERE NOT in_log")
    if met > count(con, f"SELECT count(*) FROM {log}") - count(
        con, "SELECT count(*) FROM different WHERE NOT in_ledger"
    ):
        con.execute(
            f"""
            INSERT INTO different BY NAME
            SELECT {", ".join(key)}, true AS in_ledger, true AS in_log, count(*) AS times
            FROM {ledger} SEMI JOIN {log} USING ({", ".join(key)}) GROUP BY ALL HAVING count(*) > 1
            """
        )
