"""Invoice files: whole or not at all, never twice, and filled again when they are lost."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from ledgers import bill, new_home
from opentab.billing.delivery import Delivery, deliver
from opentab.core.errors import LedgerError, SinkError
from opentab.ledger.invoices import Invoices
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.sinks.files import export_missing, missing
from product import event, json_lines, opentab

ODD = [
    'o"brien',
    "müller, ann",
    "a'b",
    "../up",
    "=1+1",
    "+49171",
    "-2+3",
    "-5",
    "@x",
    "'=y",
    "'z",
    "x;y",
    "emoji 🧾",
    "back\\slash",
]


@pytest.fixture
def closed(tmp_path: Path) -> Home:
    """A home with January closed and revised once."""
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    january = [event(name, "1.005", "2026-01-10T00:00:00Z") for name in ODD]
    bill(home, *january, event("ann", "5.00", "2026-01-10T00:00:00Z"))
    bill(home, event("zoe", "1.00", "2026-02-01T00:00:00Z"))
    bill(home, event("ann", "2.00", "2026-01-11T00:00:00Z", "DATA"), revise=True)
    return home


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_files_say_what_the_invoices_say(closed: Home) -> None:
    assert deliver(closed) == 2
    assert sorted(files_below(closed.invoices_path)) == [
        "2026-01/invoices-000000002.csv",
        "2026-01/invoices-000000002.jsonl",
        "2026-01/invoices-000000003.csv",
        "2026-01/invoices-000000003.jsonl",
        "2026-01/lines/lines-000000002.csv",
        "2026-01/lines/lines-000000003.csv",
    ]
    printed = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=closed).stdout)
    written = []
    for file in sorted((closed.invoices_path / "2026-01").glob("*.jsonl")):
        written += json_lines(file.read_text(encoding="utf-8"))
    order = ("customer", "revision")
    assert sorted(written, key=lambda i: [i[k] for k in order]) == sorted(printed, key=lambda i: [i[k] for k in order])

    with (closed.invoices_path / "2026-01" / "invoices-000000002.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["customer"][0] for row in rows if row["customer"][-1] in "13+9x"] == ["'"] * 4, "no formula is run"
    for row in rows:
        row["customer"] = re.sub(r"^'('*[=+\-@])", r"\1", row["customer"])
    assert [row["customer"] for row in rows] == sorted([*ODD, "ann"])
    for row in rows:
        (invoice,) = [i for i in printed if (i["customer"], i["revision"]) == (row["customer"], 1)]
        assert (row["period"], row["total"], row["currency"]) == ("2026-01", invoice["total"], "EUR")
    with (closed.invoices_path / "2026-01" / "lines" / "lines-000000003.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(row["customer"], row["revision"], row["type"], Decimal(row["amount"])) for row in lines] == [
        ("ann", "2", "CALL", Decimal("5")),
        ("ann", "2", "DATA", Decimal("2")),
    ]


def test_a_second_run_makes_no_second_copy(closed: Home) -> None:
    deliver(closed)
    before = files_below(closed.invoices_path)
    times = {name: (closed.invoices_path / name).stat().st_mtime_ns for name in before}
    assert deliver(closed) == 0
    assert {name: (closed.invoices_path / name).stat().st_mtime_ns for name in before} == times


def test_what_is_lost_is_written_again_just_as_it_was(closed: Home, tmp_path: Path) -> None:
    deliver(closed)
    before = files_below(closed.invoices_path)
    closed.invoices_path.rename(tmp_path / "moved away")
    done = opentab("invoices", "--export", home=closed)
    assert "2 of 2 sets of files were missing" in done.stderr
    assert files_below(closed.invoices_path) == before
    (closed.invoices_path / "2026-01" / "invoices-000000003.csv").unlink()
    assert deliver(closed) == 1
    assert files_below(closed.invoices_path) == before


def test_a_reader_never_sees_half_a_file(closed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def looked(name: str) -> None:
        if name == "exporting":
            seen.append([str(f.name) for f in closed.invoices_path.rglob("[!.]*") if f.is_file()])

    monkeypatch.setattr(crash, "moment", looked)
    deliver(closed)
    assert [len(names) for names in seen] == [0, 1, 2, 3, 4, 5], "a file has its name only once it is whole"
    assert not list(closed.invoices_path.rglob(".*")), "nothing is left aside"


def test_what_a_killed_export_or_closing_left_is_swept(closed: Home) -> None:
    deliver(closed)
    left = closed.invoices_path / "2026-01" / ".invoices-000000002.csv.deadbeef"
    left.write_text("half")
    deliver(closed)
    assert left.exists(), "someone may be at it"
    os.utime(left, (0, 0))
    deliver(closed)
    assert not left.exists()
    invoices = Invoices.open(closed.ledger)
    assert invoices is not None
    staged = invoices.place_of(invoices.files[0]).path.with_name("000000009-killed-00000-00000-deadbeef.parquet")
    staged.write_bytes(b"nobody names it")
    os.utime(staged, (0, 0))
    assert invoices.sweep() == 1
    assert all(invoices.place_of(file).exists() for file in invoices.files)


def test_a_damaged_ledger_is_not_a_place_that_is_gone(closed: Home) -> None:
    invoices = Invoices.open(closed.ledger)
    assert invoices is not None
    invoices.place_of(invoices.files[0]).path.unlink()
    with pytest.raises(LedgerError, match=r"the ledger's file .* is gone"):
        deliver(closed)


def test_a_place_that_is_gone_is_a_sentence_and_loses_nothing(closed: Home) -> None:
    closed.invoices_path.write_text("a file where the folder should be")
    with pytest.raises(SinkError, match="the invoice files cannot be written to"):
        deliver(closed)
    failed = opentab("invoices", "--export", home=closed, check=False)
    assert failed.returncode == 1
    assert "the invoices are safe in the ledger" in failed.stderr
    closed.invoices_path.unlink()
    assert deliver(closed) == 2


def test_delivery_waits_for_the_place_and_fills_it_by_itself(closed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentab.billing.delivery.LOOK_SECONDS", 0.05)
    closed.invoices_path.write_text("not yet")
    delivery = Delivery(closed)
    delivery.start()

    def wait_until(what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def missing_sets() -> int:
        invoices = Invoices.open(closed.ledger)
        assert invoices is not None
        return len(missing(closed.invoices_path, invoices)) if closed.invoices_path.is_dir() else 2

    try:
        wait_until(lambda: delivery.trouble is not None)
        closed.invoices_path.unlink()
        wait_until(lambda: missing_sets() == 0 and delivery.trouble is None)
        shutil.rmtree(closed.invoices_path)
        wait_until(lambda: missing_sets() == 0)
    finally:
        delivery.stop()
    assert delivery.bug is None


def test_files_of_many_parts_are_one_file_in_order(closed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentab.closing.closing.PART_ROWS", 3)
    customers = [f"c{n:03d}" for n in range(40)]
    bill(closed, *(event(name, "1.00", "2026-02-10T00:00:00Z") for name in customers))
    bill(closed, event("zoe", "1.00", "2026-03-01T00:00:00Z"))
    invoices = Invoices.open(closed.ledger)
    assert invoices is not None
    assert len([file for file in invoices.files if file.period == "2026-02"]) > 5
    export_missing(closed.invoices_path, invoices, currency="EUR")
    (file,) = (closed.invoices_path / "2026-02").glob("*.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["customer"] for row in rows] == [*customers, "zoe"]
    (file,) = (closed.invoices_path / "2026-02").glob("*.jsonl")
    assert [json.loads(line)["customer"] for line in file.read_text().splitlines()] == [*customers, "zoe"]
