"""Spark's own event log of a pipeline, held against the journal: who read and billed the events, and who closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from product import json_lines, opentab

PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
QUERY_ID = "sql.streaming.queryId"


def settings(directory: Path) -> str:
    """What a home's settings end with so that Spark writes its event log to a directory."""
    directory.mkdir()
    return f'[spark]\neventLog.enabled = true\neventLog.compress = false\neventLog.dir = "{directory.as_uri()}"\n'


def check(directory: Path, home: Home, *, rows: int) -> None:
    """One streaming query read each row once, its tasks billed every batch, and Spark jobs made every invoice.

    1. the rows of all batches are those of the log, 2. each batch has its progress, 3. its job is a job of the query,
    and all tasks that the journal names are tasks of it, 4. each position with invoices has its closing's job
    """
    log = _events(directory)
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    batches = [record for record in journal.batches() if record.taken]
    progress = [one["progress"] for one in log if one["Event"] == PROGRESS]
    read = [one["sources"][0]["numInputRows"] for one in progress]
    assert sum(read) == rows, "each row was read once"
    assert len([count for count in read if count]) == len(batches)
    jobs = {name: job for job in log if job["Event"] == "SparkListenerJobStart" and (name := _description(job))}
    tasks = [
        one for one in log if one["Event"] == "SparkListenerTaskEnd" and one["Task End Reason"]["Reason"] == "Success"
    ]
    for record in batches:
        job = jobs[f"batch {record.batch}"]
        assert job["Properties"][QUERY_ID] in {one["id"] for one in progress}
        ran = sum(one["Stage ID"] in job["Stage IDs"] for one in tasks)
        assert sum(record.tasks.values()) == ran > 0
    invoices = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout)
    positions = {invoice["position"] for invoice in invoices}
    assert positions and {f"closing at batch {position}" for position in positions} <= jobs.keys()


def _description(job: dict[str, Any]) -> str | None:
    found: str | None = job["Properties"].get("spark.job.description")
    return found


def _events(directory: Path) -> list[dict[str, Any]]:
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("appstatus")]
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
