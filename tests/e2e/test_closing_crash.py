"""Killed for real around a closing: every invoice is issued once, and every file is whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import psutil

from opentab.ledger.invoices import Invoices
from opentab.log import DirectoryLog, Producer
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.simulator.bills import invoiced_by_own_month
from opentab.simulator.generator import Plan, generate, read_bills
from opentab.simulator.invoice_ticker import all_statements
from opentab.sinks.files import missing
from processes import PATIENCE_SECONDS, caught_up_us, check_exact, position, streams, wait_for
from product import event, json_lines, opentab

Start = Callable[..., subprocess.Popen[str]]


def check_invoices(home: Home) -> None:
    """Exact to the audit, to the simulator and to the cent; numbered without gaps; every file there."""
    check_exact(home)
    statements = list(all_statements(home))
    invoiced = invoiced_by_own_month(statements)
    expected = read_bills(home.expected_path)
    assert {k: v for k, v in invoiced.items() if v} == {k: v for k, v in expected.items() if v}
    deltas: dict[tuple[str, str], Decimal] = {}
    for statement in statements:
        key = statement.period, statement.customer
        assert statement.previous_total is None if statement.revision == 1 else key in deltas
        deltas[key] = deltas.get(key, Decimal(0)) + Decimal(statement.delta)
        assert deltas[key] == Decimal(statement.total)
    check_files(home)


def check_files(home: Home) -> None:
    invoices = Invoices.open(home.ledger)
    assert invoices is not None
    assert missing(home.invoices_path, invoices) == []
    exported = []
    for file in home.invoices_path.glob("*/*.jsonl"):
        exported += json_lines(file.read_text(encoding="utf-8"))
    printed = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout)
    assert sorted(map(str, exported)) == sorted(map(str, printed))


def test_killed_at_each_step_of_a_closing(small_home: Home, start: Start) -> None:
    moments = ["closing:1", "issued:1", "exporting:2", "exported:1", "closing_staged:1"]
    for month, moment in enumerate(moments, start=1):
        period = f"2025-{month:02d}"
        plan = Plan(seed=month, first_period=period, events_per_customer=100, beyond_share=0.02, until_final=True)
        generate(plan, small_home)
        died = opentab("run", "--once", home=small_home, check=False, OPENTAB_CRASH_AT=moment)
        assert died.returncode == -signal.SIGKILL, (moment, died)
    # A stream without anything to read still issues what the one before it left.
    pipeline = start("run", home=small_home)
    wait_for(lambda: streams(small_home, pipeline), "Spark was up")
    wait_for(lambda: invoices_position(small_home) == position(small_home), "all that was due was issued")
    pipeline.terminate()
    pipeline.wait()
    check_invoices(small_home)
    # Nothing is left to do, and doing it again changes nothing.
    before = sorted(small_home.invoices_path.rglob("*.csv"))
    again = opentab("run", "--once", home=small_home)
    assert "nothing new in the log" in again.stderr
    assert "invoices" not in again.stderr
    assert sorted(small_home.invoices_path.rglob("*.csv")) == before


def test_a_pipeline_fenced_in_the_middle_of_a_closing(small_home: Home, start: Start) -> None:
    producer = Producer(DirectoryLog(small_home.log_path))
    zombie = start("run", home=small_home, OPENTAB_CRASH_AT="closing_staged:1:STOP")
    wait_for(lambda: streams(small_home, zombie), "Spark was up")
    producer.append(event("ann", "5.00", "2026-01-10T00:00:00Z").encode())
    wait_for(lambda: position(small_home) == 1, "the first batch was billed")
    producer.append(event("bob", "1.00", "2026-02-02T00:00:00Z").encode())
    wait_for(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, "it hung before the commit")
    opentab("run", "--once", "--take-over", home=small_home)
    os.kill(zombie.pid, signal.SIGCONT)
    output, _ = zombie.communicate(timeout=PATIENCE_SECONDS)
    assert zombie.returncode == 4, output
    assert "another pipeline has taken over this home" in output
    assert "Traceback" not in output
    (invoice,) = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=small_home).stdout)
    assert (invoice["customer"], invoice["revision"], invoice["total"]) == ("ann", 1, "5.00")
    check_exact(small_home)
    check_files(small_home)


def test_months_close_live_while_the_place_for_files_is_gone(small_home: Home, start: Start, tmp_path: Path) -> None:
    small_home.invoices_path.write_text("gone")
    pipeline = start("run", home=small_home)
    wait_for(lambda: streams(small_home, pipeline), "Spark was up")
    options = ("--months", "2", "--month-seconds", "8", "--events", "300", "--until-final")
    opentab("generate", *options, home=small_home)
    generated_us = time.time_ns() // 1000
    wait_for(lambda: caught_up_us(small_home) > generated_us, "it caught up, files or not")
    wait_for(lambda: len(set(periods(small_home))) >= 2, "both months were closed")
    small_home.invoices_path.unlink()
    wait_for(lambda: files_complete(small_home), "the files were written by themselves")
    # Moved away while it runs: filled again, and the stream did not notice.
    shutil.move(small_home.invoices_path, tmp_path / "moved away")
    wait_for(lambda: files_complete(small_home), "the files were written once more")
    pipeline.terminate()
    output, _ = pipeline.communicate(timeout=PATIENCE_SECONDS)
    assert pipeline.returncode == 0, output
    assert "WAITING: the invoice files cannot be written" in output
    check_invoices(small_home)
    first = [s for s in all_statements(small_home) if s.revision == 1 and not s.total.endswith(".00")]
    assert first, "some invoices were uneven at first"
    last = {(s.period, s.customer): s for s in all_statements(small_home)}
    assert all(s.total.endswith(".00") for s in last.values()), "and every one is round at last"


def test_once_ends_with_a_sentence_if_the_files_cannot_be_written(small_home: Home) -> None:
    opentab("generate", "--months", "1", "--events", "50", "--until-final", home=small_home)
    small_home.invoices_path.write_text("gone")
    failed = opentab("run", "--once", home=small_home, check=False)
    assert failed.returncode == 1
    assert "the invoice files cannot be written to" in failed.stderr
    assert len(periods(small_home)) > 0, "the invoices themselves are issued"
    small_home.invoices_path.unlink()
    check_invoices(small_home)


def invoices_position(home: Home) -> int:
    beat = read_heartbeat(home.ledger)
    return beat.invoices_position if beat else 0


def periods(home: Home) -> list[str]:
    return [statement.period for statement in all_statements(home)]


def files_complete(home: Home) -> bool:
    invoices = Invoices.open(home.ledger)
    return invoices is not None and home.invoices_path.is_dir() and not missing(home.invoices_path, invoices)
