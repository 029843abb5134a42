"""opentab bench closing: what closing a month takes, and what the stream notices of it.

A home is filled with a month of so many customers. Then a real pipeline runs while small segments keep
coming; one of them carries the watermark past the month's end. Times come from the journal's own records
and from the invoices' commit, so nothing in the pipeline knows that it is being measured.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from opentab.ledger.invoices import Invoices
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.simulator.command import started, streams, wait_until
from opentab.sinks.files import missing
from opentab_tools.bench.audited import audit
from opentab_tools.bench.billed_home import bill_month, journal_of
from opentab_tools.bench.feeder import Feeder
from opentab_tools.bench.figures import Figure, at_most, plain, write_json
from opentab_tools.measuring.disk_usage import file_bytes
from opentab_tools.measuring.machine import describe_machine

SIZES = (1_000, 100_000, 1_000_000)
BEFORE_THE_END = "2026-02-01T06:00:00Z"  # the watermark stays 12 h behind
BEHIND_THE_END = "2026-02-01T12:00:01Z"
BATCHES_BEFORE = 20
SECONDS_MAX = 40.0
GROWTH_MAX = 1.1  # noise and all
DURING_MAX = 2.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MeasuredClosing:
    """What closing a month of so many customers took."""

    customers: int
    seconds: float  # from the batch that closes the month to the invoices' commit
    files_seconds: float  # and on to the last invoice file
    before_ms: tuple[float, ...]  # the stream's batches before
    during_ms: tuple[float, ...]  # and while the closing was under way
    ledger_bytes: int
    file_bytes: int

    @property
    def during_to_before(self) -> float | None:
        """How much longer a batch takes meanwhile; None if none came in that time."""
        if not self.during_ms:
            return None
        return statistics.median(self.during_ms) / statistics.median(self.before_ms)


def bench_closing(
    *, sizes: tuple[int, ...], repeats: int, json_path: Path | None, work_dir: Path, say: Say
) -> list[Figure]:
    """Close a month of each size beside a running stream, as often as wanted; write the figures where asked to."""
    machine = describe_machine()
    rounds = []
    for repeat in range(1, repeats + 1):
        measured = []
        for customers in sizes:
            path = work_dir / f"customers-{customers}"
            one = measure_closing(path, customers, say)
            say(
                f"{repeat} of {repeats}, {customers:,} customers: closed in {one.seconds:.1f} s, "
                f"files after {one.files_seconds:.1f} s"
            )
            measured.append(one)
            shutil.rmtree(path)
        rounds.append(measured)
    figures = closing_figures(rounds)
    write_json(json_path, machine, figures)
    return figures


def closing_figures(rounds: Sequence[Sequence[MeasuredClosing]]) -> list[Figure]:
    """What the closings come to; each size against the one before it, round by round."""
    figures = []
    sizes = list(zip(*rounds, strict=True))
    for closings in sizes:
        customers = closings[0].customers
        label = f"{customers:,} customers"
        figures += [
            at_most(f"close, {label}", [one.seconds for one in closings], "s", SECONDS_MAX),
            plain(f"close and write the files, {label}", [one.files_seconds for one in closings], "s"),
            plain(f"batch before, {label}", [ms for one in closings for ms in one.before_ms], "ms"),
        ]
        ratios = [ratio for one in closings if (ratio := one.during_to_before) is not None]
        if ratios:
            figures.append(plain(f"batch during, {label}", [ms for one in closings for ms in one.during_ms], "ms"))
            figures.append(at_most(f"batch during to before, {label}", ratios, "ratio", DURING_MAX))
        figures += [
            plain(f"an invoice in the ledger, {label}", [one.ledger_bytes / customers for one in closings], "bytes"),
            plain(f"an invoice in files, {label}", [one.file_bytes / customers for one in closings], "bytes"),
        ]
    for small, large in pairwise(sizes):
        growth = [
            (one.seconds / one.customers) / (other.seconds / other.customers)
            for one, other in zip(large, small, strict=True)
        ]
        name = f"seconds a customer, {large[0].customers:,} to {small[0].customers:,}"
        figures.append(at_most(name, growth, "ratio", GROWTH_MAX))
    return figures


def measure_closing(path: Path, customers: int, say: Say) -> MeasuredClosing:
    """Fill a home, then close its month beside a running stream.

    1. bill the month, 2. let the stream settle, 3. carry the watermark over the end, 4. wait for the files, 5. audit
    """
    say(f"billing a month of {customers:,} customers")
    home = bill_month(path, customers=customers)
    settled = journal_of(home).position
    feeder = Feeder(home, at=BEFORE_THE_END)
    with started(home, "run") as pipeline:
        try:
            wait_until(lambda: streams(home, pipeline), "Spark was up", pipeline)
            feeder.start()
            wait_until(lambda: _position(home) >= settled + 2 + BATCHES_BEFORE, "the stream settled", pipeline)
            feeder.at = BEHIND_THE_END
            wait_until(lambda: _closed(home), "the month was closed", pipeline)
            closed_at = _commit_seconds(home)
            wait_until(lambda: not missing(home.invoices_path, _invoices(home)), "the files were there", pipeline)
            files_at = max(file.stat().st_mtime for file in home.invoices_path.rglob("*") if file.is_file())
        finally:
            feeder.stop()
    audit(home)
    records = journal_of(home).batches(after=settled + 2)
    invoices = _invoices(home)
    position = invoices.files[0].position
    (closing,) = [record for record in records if record.batch == position]
    began_at = closing.committed_us / 1e6
    return MeasuredClosing(
        customers=customers,
        seconds=closed_at - began_at,
        files_seconds=files_at - began_at,
        before_ms=tuple(r.took_ms for r in records if r.batch < position),
        during_ms=tuple(r.took_ms for r in records if r.batch > position and r.started_us < closed_at * 1e6),
        ledger_bytes=sum(invoices.place_of(file).path.stat().st_size for file in invoices.files),
        file_bytes=file_bytes(home.invoices_path),
    )


def _position(home: Home) -> int:
    beat = read_heartbeat(home.ledger)
    return beat.position if beat else 0


def _closed(home: Home) -> bool:
    invoices = Invoices.open(home.ledger)
    return invoices is not None and bool(invoices.files)


def _commit_seconds(home: Home) -> float:
    """When the invoices' last commit was written."""
    return max(file.stat().st_mtime for file in (home.ledger.path / "invoices" / "_delta_log").glob("*.json"))


def _invoices(home: Home) -> Invoices:
    invoices = Invoices.open(home.ledger)
    assert invoices is not None
    return invoices
