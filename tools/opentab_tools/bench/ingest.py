"""opentab bench ingest: what the pipeline does on this machine, beside what it is meant to do.

Throughput comes from real runs over logs made beforehand, with few customers and with many in turn,
so that drift of the machine meets all of them. A value is the median over the repeats; a ratio is taken
within each turn, before the median.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentab.billing.session import open_session
from opentab.core.errors import OpentabError
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.tables.table import CHECKPOINT_COMMITS
from opentab_tools.bench.audited import audit, audit_replica
from opentab_tools.bench.end_to_end import EndToEnd, measure_end_to_end
from opentab_tools.bench.figures import MEBIBYTE, Figure, Say, at_least, at_most, plain, write_json
from opentab_tools.bench.ledger_age import Age, measure_ages
from opentab_tools.bench.month_log import write_month
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.measuring.measured_run import DRIVER, JVM, TOTAL, WORKERS, MeasuredRun, copy_home, measure_home

SIZES = (100, 10_000, 1_000_000)
AGES = (100, 1_000)  # batches, and the oldest one
OLD_BATCHES = 10_000

DEDUPE = "off"  # what an id costs has a bench of its own
WARM_MIN = 1_200_000
MANY_TO_FEW_MIN = 0.9
MANY_TO_FEW_END_TO_END_MIN = 0.6
FIRST_COMMIT_SECONDS_MAX = 12.0
OLD_TO_YOUNG_MAX = 1.1


def bench_ingest(
    *,
    events: int,
    repeats: int,
    json_path: Path | None,
    work_dir: Path,
    say: Say,
    old_batches: int = OLD_BATCHES,
) -> list[Figure]:
    """Measure throughput, memory and the cost of an old ledger; write the figures where asked to.

    1. make the logs, 2. run over them in turn, alone and beside a replica, 3. age ledgers, 4. write JSON
    """
    machine = describe_machine()
    logs = [_make_log(work_dir, customers, events, say) for customers in dict.fromkeys(min(s, events) for s in SIZES)]
    runs: dict[int, list[MeasuredRun]] = {log.customers: [] for log in logs}
    folded: dict[int, list[EndToEnd]] = {log.customers: [] for log in logs}
    for repeat in range(1, repeats + 1):
        for log in logs:
            label = f"run {repeat} of {repeats}, {log.customers:,} customers"
            run = _measure(log, work_dir / "run")
            runs[log.customers].append(run)
            say(f"{label}: {run.events_per_second:,.0f} events/s from the start, load was {run.load_before:.2f}")
        for log in logs:
            label = f"run {repeat} of {repeats} with a replica, {log.customers:,} customers"
            end = _measure_with_replica(log, work_dir / "run")
            folded[log.customers].append(end)
            say(f"{label}: {end.warm_events_per_second:,.0f} events/s end to end, load was {end.run.load_before:.2f}")
    ages = [*(age for age in AGES if age < old_batches), old_batches]
    figures = [*run_figures(runs), *end_to_end_figures(folded)]
    spark = open_session(config.load(work_dir / "ledgers"))
    figures += age_figures(measure_ages(spark, work_dir / "ledgers", ages, say=say))
    spark.stop()
    machine["load_before"] = [run.load_before for turn in zip(*runs.values(), strict=True) for run in turn]
    write_json(json_path, machine, figures)
    return figures


def run_figures(runs_of: Mapping[int, Sequence[MeasuredRun]]) -> list[Figure]:
    """What the runs come to, by the number of customers; those of the same turn ran one behind the other."""
    figures = []
    for customers, runs in runs_of.items():
        label = f"{customers:,} customers"
        warm = [rate for run in runs if (rate := run.warm_events_per_second) is not None]
        if warm:  # a small log is read before anything is warm
            figures.append(at_least(f"warm throughput, {label}", warm, "events/s", WARM_MIN))
        figures.append(plain(f"throughput from start, {label}", [r.events_per_second for r in runs], "events/s"))
        seconds = [run.first_commit_seconds for run in runs]
        figures.append(at_most(f"first commit, {label}", seconds, "s", FIRST_COMMIT_SECONDS_MAX))
        for role in (DRIVER, JVM, WORKERS, TOTAL):
            sizes = [run.memory_bytes_max.get(role, 0) / MEBIBYTE for run in runs]
            figures.append(plain(f"peak memory of {role}, {label}", sizes, "MiB"))
    few, many = min(runs_of), max(runs_of)
    if few == many:
        return figures
    pairs = list(zip(runs_of[few], runs_of[many], strict=True))
    name = f"{many:,} to {few:,} customers"
    warm_pairs = [(f.warm_events_per_second, m.warm_events_per_second) for f, m in pairs]
    ratios = [m / f for f, m in warm_pairs if f is not None and m is not None]
    if ratios:
        figures.append(at_least(f"warm throughput, {name}", ratios, "ratio", MANY_TO_FEW_MIN))
    ratios = [m.events_per_second / f.events_per_second for f, m in pairs]
    figures.append(at_least(f"throughput from start, {name}", ratios, "ratio", MANY_TO_FEW_MIN))
    return figures


def end_to_end_figures(folded_of: Mapping[int, Sequence[EndToEnd]]) -> list[Figure]:
    """What runs beside a replica on the same cores come to, by the number of customers, until all can be read."""
    figures = []
    for customers, found in folded_of.items():
        label = f"{customers:,} customers"
        figures.append(plain(f"end to end, {label}", [one.warm_events_per_second for one in found], "events/s"))
        figures.append(plain(f"end to end from start, {label}", [one.events_per_second for one in found], "events/s"))
    few, many = min(folded_of), max(folded_of)
    if few < many:
        pairs = zip(folded_of[few], folded_of[many], strict=True)
        ratios = [m.warm_events_per_second / f.warm_events_per_second for f, m in pairs]
        name = f"end to end, {many:,} to {few:,} customers"
        figures.append(at_least(name, ratios, "ratio", MANY_TO_FEW_END_TO_END_MIN))
    return figures


def age_figures(ages: Sequence[Age]) -> list[Figure]:
    """What the ledger's age costs. Batches were taken in turn, so their medians compare, checkpoint by checkpoint."""
    figures = []
    for age in ages:
        label = f"after {age.batches:,} batches"
        figures += [
            plain(f"batch {label}", age.batch_ms, "ms"),
            plain(f"commit {label}", age.commit_ms, "ms"),
            plain(f"open the journal {label}", age.open_ms, "ms"),
            plain(f"live files {label}", [age.live_files_max], "files"),
            plain(f"log files {label}", [age.log_files_max], "files"),
        ]
    young = ages[0]
    for old in ages[1:]:
        name = f"{old.batches:,} to {young.batches:,} batches"
        for what, of_old, of_young in (
            ("batch", old.batch_ms, young.batch_ms),
            ("commit", old.commit_ms, young.commit_ms),
        ):
            ratios = [one / other for one, other in zip(_rounds(of_old), _rounds(of_young), strict=True)]
            figures.append(at_most(f"{what}, {name}", ratios, "ratio", OLD_TO_YOUNG_MAX))
        files = old.live_files_max / young.live_files_max
        figures.append(at_most(f"live files, {name}", [files], "ratio", OLD_TO_YOUNG_MAX))
    return figures


def _rounds(taken_ms: Sequence[float]) -> list[float]:
    """The median of each round from checkpoint to checkpoint."""
    firsts = range(0, len(taken_ms), CHECKPOINT_COMMITS)
    return [statistics.median(taken_ms[first : first + CHECKPOINT_COMMITS]) for first in firsts]


@dataclass(frozen=True, slots=True)
class _Log:
    home: Home
    customers: int
    event_count: int


def _make_log(work_dir: Path, customers_wanted: int, events: int, say: Say) -> _Log:
    customers = min(customers_wanted, events)
    path = work_dir / f"log-of-{customers_wanted}"
    path.mkdir(parents=True)
    home = config.load(path)
    say(f"writing about {events:,} events of {customers:,} customers")
    outcome = write_month(home, customers=customers, events_per_customer=events // customers)
    return _Log(home, customers, outcome.event_count_planned)


def _measure(log: _Log, path: Path) -> MeasuredRun:
    """Run over a copy once; it must bill every event, and rightly."""
    home = copy_home(log.home, path, dedupe=DEDUPE)
    run = measure_home(home)
    _check(home, run, log)
    shutil.rmtree(path)
    return run


def _measure_with_replica(log: _Log, path: Path) -> EndToEnd:
    """The same beside a replica, which must hold the bills, too."""
    home = copy_home(log.home, path, dedupe=DEDUPE)
    end = measure_end_to_end(home)
    _check(home, end.run, log)
    audit_replica(home, expected_path=log.home.expected_path)
    shutil.rmtree(path)
    return end


def _check(home: Home, run: MeasuredRun, log: _Log) -> None:
    if run.event_count != log.event_count:
        raise OpentabError(f"the measured run billed {run.event_count:,} events of {log.event_count:,}")
    audit(home, expected_path=log.home.expected_path)
