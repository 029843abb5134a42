"""Inputs that could not be billed, read from the journal."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from opentab.ledger.engine import connect
from opentab.ledger.journal import Journal

# A place is partition/segment@byte in a directory, partition/offset in a Kafka topic.
PARTITION = "split_part(place, '/', 1)"
NUMBER = "split_part(split_part(place, '/', 2), '@', 1)::bigint"
BYTE = "try_cast(split_part(place, '@', 2) as bigint)"


def rejection_rows(
    journal: Journal | None, *, reason: str | None = None, after: int = 0, upto: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every rejection of the batches behind `after`, in the order of the log, as the journal holds it."""
    if journal is None:
        return
    connection = connect()
    connection.register("rejections", journal.rejections(after=after, upto=upto))
    result = connection.execute(
        f"""
        select batch, reason, place, raw, detail from rejections where $reason is null or reason = $reason
        order by batch, {PARTITION}, {NUMBER}, {BYTE}
        """,
        {"reason": reason},
    )
    names = [column[0] for column in result.description]
    while rows := result.fetchmany(10_000):
        for row in rows:
            yield dict(zip(names, row, strict=True))


def newest_rejections(journal: Journal | None, *, upto: int, reason: str | None, limit: int) -> list[dict[str, Any]]:
    """The last rejections up to a batch, the newest first. It looks further back only while there are too few."""
    found: list[dict[str, Any]] = []
    if journal is None or not upto:
        return found
    for reach in (10, 1_000, upto):
        with connect(threads=1) as connection:
            connection.register("rejections", journal.rejections(after=max(0, upto - reach), upto=upto))
            result = connection.execute(
                f"""
                select batch, reason, place, raw, detail from rejections where $reason is null or reason = $reason
                order by batch desc, {PARTITION}, {NUMBER} desc, {BYTE} desc
                limit $limit
                """,
                {"reason": reason, "limit": limit},
            )
            names = [column[0] for column in result.description]
            found = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        if len(found) == limit or reach >= upto:
            break
    return found


def reason_counts(journal: Journal | None, *, reason: str | None = None) -> list[tuple[str, int]]:
    """How many rejections each reason has."""
    if journal is None:
        return []
    connection = connect()
    connection.register("rejections", journal.rejections())
    return connection.execute(
        "select reason, count(*) from rejections where $reason is null or reason = $reason"
        " group by 1 order by 2 desc, 1",
        {"reason": reason},
    ).fetchall()


def rejection_as_json(row: dict[str, Any]) -> dict[str, Any]:
    """The shape that `opentab rejections --format json` prints; what is no UTF-8 comes as base64 too."""
    raw: bytes = row["raw"]
    shown = {
        "batch": row["batch"],
        "reason": row["reason"],
        "place": row["place"],
        "raw": raw.decode("utf-8", errors="backslashreplace"),
        "detail": row["detail"],
    }
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        shown["raw_base64"] = base64.b64encode(raw).decode()
    return shown
