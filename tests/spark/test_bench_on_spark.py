"""What the bench needs Java for: how quick a ledger is when it is old, and what the machine is."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from opentab.tables import table
from opentab_tools.bench.ledger_age import WINDOW_COMMITS, measure_ages
from opentab_tools.measuring.machine import describe_machine


def test_ages_are_measured_on_real_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.setattr("opentab_tools.bench.ledger_age.WINDOW_COMMITS", 20)
    young, older, old = measure_ages(spark, tmp_path, [3, 20, 40], say=lambda text: None)
    assert (young.batches, older.batches, old.batches) == (3, 20, 40)
    for age in (young, older, old):
        assert len(age.batch_ms) == len(age.commit_ms) == 20
        assert 0 < statistics.median(age.commit_ms) < statistics.median(age.batch_ms)
    assert 0 < young.live_files_max <= 2 * (20 + 3)
    assert WINDOW_COMMITS % table.CHECKPOINT_COMMITS == 0


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["cpu_count"] >= 1
    assert machine["memory_bytes"] > 0
    assert {"python", "java", "pyspark", "pyarrow", "deltalake"} <= machine["versions"].keys()
    json.dumps(machine)
