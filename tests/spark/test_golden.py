"""Homes that earlier versions wrote are still read, audited and gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import golden
from opentab.billing.run import Pipeline
from opentab.ledger.journal import Journal
from opentab.ledger.rejections import rejection_as_json, rejection_rows
from opentab.ledger.totals import customer_totals, place_of, total_as_json
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config
from product import event, json_lines, opentab

HOMES = sorted((Path(__file__).parents[1] / "golden").iterdir())


def test_this_version_has_one() -> None:
    assert golden.EDITION in [home.name for home in HOMES]


@pytest.mark.parametrize("written", HOMES, ids=lambda path: path.name)
def test_a_golden_home_is_read_and_gone_on_with(written: Path, tmp_path: Path, spark: object) -> None:
    shutil.copytree(written, tmp_path / "home")
    home = config.load(tmp_path / "home")
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    totals = [total_as_json(t, place_of(journal)) for t in customer_totals(journal, home.calendar)]
    assert totals == json_lines((written / "totals.jsonl").read_text())
    rejections = [rejection_as_json(row) for row in rejection_rows(journal)]
    assert rejections == json_lines((written / "rejections.jsonl").read_text())
    if (written / "invoices.jsonl").exists():
        printed = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout)
        assert printed == json_lines((written / "invoices.jsonl").read_text())
    (verdict,) = json_lines(opentab("verify", "--format", "json", home=home).stdout)
    assert verdict["unverified_files"] > 0, "these files have no checksums, and nobody is told otherwise"

    Producer(DirectoryLog(home.log_path)).append(event("golden", "1.25", "2026-01-31T12:00:00Z").encode())
    Pipeline(home, once=True, spark=spark).run()  # type: ignore[arg-type]
    (total,) = json_lines(opentab("totals", "--customer", "golden", "--format", "json", home=home).stdout)
    assert total["total"] == "1.250000"
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None and journal.log_id() == DirectoryLog(home.log_path).find_id() is not None
    opentab("verify", "--no-expected", home=home)
