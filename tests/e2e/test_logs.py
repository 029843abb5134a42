"""What happened to a home can be told from its log lines alone."""

from __future__ import annotations

import signal
from pathlib import Path

from opentab.ledger.journal import Journal
from opentab.runtime import config
from processes import SMALL_BATCHES
from product import json_lines, opentab


def test_the_lines_tell_what_was_billed_and_closed_and_why_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text(SMALL_BATCHES + '[logs]\nformat = "json"\n')
    home = config.load(tmp_path)
    options = ("--months", "2", "--first-period", "2025-01", "--events", "200", "--bad", "0.02", "--until-final")
    opentab("generate", *options, home=home)
    died = opentab("run", "--once", home=home, check=False, OPENTAB_CRASH_AT="staged:3")
    assert died.returncode == -signal.SIGKILL
    said = opentab("run", "--once", home=home)
    assert "opentab.billing" not in said.stdout + said.stderr

    lines = json_lines((home.logs_path / "pipeline.log").read_text())
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    records = journal.batches()

    # Each run begins where the one before ended, also where that one was killed before it could say so.
    killed_at, again_at = (at for at, one in enumerate(lines) if one["message"] == "pipeline starts")
    assert (lines[killed_at]["position"], lines[again_at]["position"]) == (0, 2)
    position = 0
    for one in lines:
        if one["message"] == "pipeline starts":
            position = one["position"]
        elif one["message"] == "batches committed":
            assert one["first_batch"] == position + 1
            position = one["batch"]
    assert position == journal.position == records[-1].batch > 3
    committed = [one for one in lines[again_at:] if one["message"] == "batches committed"]
    assert sum(one["events"] for one in committed) == sum(record.event_count for record in records[2:])
    assert sum(sum(one["rejections"].values()) for one in committed) == sum(r.rejection_count for r in records[2:]) > 0

    closed = [period for one in lines if one["message"] == "invoices issued" for period in one["closed"]]
    periods = json_lines(opentab("periods", "--format", "json", home=home).stdout)
    assert closed == sorted(set(closed)) == [one["period"] for one in periods if one["status"] != "open"]
    assert all(one["position"] <= position and one["invoices"] for one in lines if one["message"] == "invoices issued")

    assert [one["reason"] for one in lines if one["message"] == "pipeline stops"] == ["all of the log is billed"]
    assert lines[-1]["message"] == "pipeline stops"
