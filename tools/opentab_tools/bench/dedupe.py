"""opentab bench dedupe: what counting every event once costs, beside letting every event count, and beside Spark's way.

Runs with and without take turns over the same log, so that drift of the machine meets both. Ids that are remembered
beforehand are put into the ledger as runs of random keys: nothing tells them from ids of real events. As behind a
pipeline that has run for long, their columns are at hand, and the disk has written what it was given.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from opentab.core.errors import OpentabError
from opentab.core.records import SEEN, BatchRecord
from opentab.dedupe.index import DedupeIndex
from opentab.dedupe.sorted_runs import SLICE_ROWS, stage_run
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.simulator.command import bill_log
from opentab.simulator.generator import Plan, generate
from opentab.tables.files import StagedFile
from opentab_tools.bench.audited import audit
from opentab_tools.bench.figures import MEBIBYTE, Figure, Say, at_least, at_most, plain, write_json
from opentab_tools.bench.freshness import measure_freshness, percentile
from opentab_tools.bench.month_log import PERIOD
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.measuring.measured_run import TOTAL, MeasuredRun, copy_home, measure_home
from opentab_tools.servers.http_line import HttpLine
from opentab_tools.servers.served_home import served

CUSTOMERS = 100_000
REMEMBERED_RUNS = 6
ON_TO_OFF_MIN = 0.65
FRESHNESS_MS_MAX = 50.0
FRESHNESS_SECONDS, FRESHNESS_WARM_UP_SECONDS = 20, 10
RECEIPTS, RECEIPTS_WARM_UP = 2_000, 100
RECEIPT_P99_MS_MAX = 20.0
ON, OFF = "unbounded", "off"


@dataclass(frozen=True, slots=True)
class Log:
    """A log of events that all have an id, some of them twice."""

    home: Home
    repeats_share: float
    line_count: int
    event_count: int


def bench_dedupe(
    *, events: int, remembered: Sequence[int], shares: Sequence[float], repeats: int, peer: bool,
    json_path: Path | None, work_dir: Path, say: Say,
) -> list[Figure]:  # fmt: skip
    """Measure throughput with and without, over shares of repeats and numbers of ids remembered, and small batches.

    1. a log for each share, 2. runs in turn, 3. receipts, 4. Spark's own operator on the same events, 5. freshness
    """
    machine = describe_machine()
    figures: list[Figure] = []
    for share in shares:
        log = _make_log(work_dir, events, share, say)
        for count in remembered if share == shares[0] else remembered[:1]:
            figures += _compare(log, count, repeats, work_dir, say)
        if share == shares[0]:
            figures += _receipts(log, repeats, work_dir, say)
        if peer and share == shares[-1]:
            figures += _peer(log, repeats, work_dir, say)
        shutil.rmtree(log.home.path)
    figures += _freshness(repeats, work_dir, say)
    write_json(json_path, machine, figures)
    return figures


def _make_log(work_dir: Path, events: int, share: float, say: Say) -> Log:
    path = work_dir / f"log-{share}"
    path.mkdir(parents=True)
    home = config.load(path)
    customers = min(CUSTOMERS, events)
    say(f"writing about {events:,} events with ids, {share:.0%} of them twice")
    plan = Plan(
        seed=1,
        customers=customers,
        events_per_customer=events // customers,
        first_period=PERIOD,
        id_share=1.0,
        duplicate_share=share,
        late_share=0.0,
        variety_share=0.0,
    )
    outcome = generate(plan, home)
    return Log(home, share, outcome.line_count, outcome.event_count_planned)


def _compare(log: Log, remembered: int, repeats: int, work_dir: Path, say: Say) -> list[Figure]:
    label = f"{log.repeats_share:.0%} repeats, {remembered:,} ids remembered"
    runs: dict[str, list[MeasuredRun]] = {ON: [], OFF: []}
    rows = sizes = 0
    for repeat in range(1, repeats + 1):
        for window, kept in runs.items():
            home = copy_home(log.home, work_dir / "run", dedupe=window)
            if window == ON and remembered:
                say(f"remembering {remembered:,} ids")
                remember(home, remembered)
            os.sync()
            run = measure_home(home)
            wanted = log.event_count if window == ON else log.line_count
            if run.event_count != wanted:
                raise OpentabError(f"the measured run billed {run.event_count:,} events of {wanted:,}")
            audit(home, but=("ids",) if remembered else ())
            if window == ON:
                rows, sizes = _weight(home)
            kept.append(run)
            # Work is lines read, whatever became of them.
            say(f"run {repeat} of {repeats}, {label}, dedupe {window}: {_rate(run, log):,.0f} lines/s")
            _remove(home)
    pairs = zip(runs[ON], runs[OFF], strict=True)
    ratios = [_rate(on, log) / _rate(off, log) for on, off in pairs]
    memory = [run.memory_bytes_max.get(TOTAL, 0) / MEBIBYTE for run in runs[ON]]
    return [
        plain(f"with dedupe, {label}", [_rate(run, log) for run in runs[ON]], "lines/s"),
        plain(f"without, {label}", [_rate(run, log) for run in runs[OFF]], "lines/s"),
        at_least(f"with to without, {label}", ratios, "ratio", ON_TO_OFF_MIN),
        plain(f"peak memory, {label}", memory, "MiB"),
        plain(f"ledger bytes an id, {label}", [sizes / max(rows, 1)], "bytes"),
    ]


def _rate(run: MeasuredRun, log: Log) -> float:
    """Lines a second behind the warm-up, or of the whole run where it is short."""
    warm = run.warm_events_per_second or run.events_per_second
    return warm * log.line_count / run.event_count


def _remove(home: Home) -> None:
    """Take a home away, and the columns of its runs: gigabytes of them would take the next run's memory."""
    DedupeIndex(home.ledger / "journal").remove()
    shutil.rmtree(home.path)


def remember(home: Home, count: int) -> None:
    """Put random keys into a new ledger, in a few runs, as if an earlier batch had counted them."""
    journal = Journal.create(home.ledger, home.identity)
    now_us = time.time_ns() // 1000
    files: list[StagedFile] = []
    for number in range(REMEMBERED_RUNS):
        rows = count // REMEMBERED_RUNS
        tables = _random_rows(rows, seed=number, now_us=now_us)
        run = stage_run(journal.root, tables, run="bench", batches=(1, 1))
        if run is not None:
            DedupeIndex(journal.root).prepare(run)
            files.append(run)
    record = BatchRecord(
        batch=1, run="bench", started_us=now_us, committed_us=now_us, partitions={}, taken={}, watermark_us=None,
        final_us=None, newest_us=None, event_count=0, sum_micros="0", entry_rows=0, rejections={}, input_bytes=0,
        rules=home.rules,
    )  # fmt: skip
    journal.commit(record, files)


def _random_rows(count: int, *, seed: int, now_us: int) -> Iterator[pa.Table]:
    """Rows in the order of their keys, some at a time: each part draws from a range of its own."""
    dice = np.random.default_rng(seed)
    parts = count // SLICE_ROWS + 1
    for part in range(parts):
        rows = count // parts
        low, high = (-(2**63) + 2**64 * at // parts for at in (part, part + 1))
        words = np.sort(dice.integers(low, high - 1, rows, dtype=np.int64, endpoint=True))
        more = [dice.integers(1, 2**62, rows, dtype=np.int64) for _ in range(2)]
        places = [np.full(rows, value, np.int64) for value in (now_us, 1)]
        columns = [np.full(rows, 1, np.int64), words, *more, places[0]]
        arrays = [pa.array(column) for column in columns]
        partition = pa.array(["default"] * rows, pa.string())
        yield pa.table([*arrays, partition, pa.array(places[1]), pa.array(np.arange(rows))], schema=SEEN)


def _weight(home: Home) -> tuple[int, int]:
    """Ids that the ledger remembers, and what their files weigh."""
    journal = Journal.open(home.ledger, home.identity)
    runs = journal.runs() if journal else []
    root = home.ledger / "journal"
    return sum(run.rows for run in runs), sum((root / run.path).path.stat().st_size for run in runs)


def _peer(log: Log, repeats: int, work_dir: Path, say: Say) -> list[Figure]:
    """The same events through Spark's own operator, with RocksDB, in a process of its own."""
    name, label = "Spark's dropDuplicatesWithinWatermark", f"{log.repeats_share:.0%} repeats"
    rates = []
    for repeat in range(1, repeats + 1):
        rates.append(_peer_rate(log, work_dir / "peer"))
        say(f"run {repeat} of {repeats}, {label}, through {name}: {rates[-1]:,.0f} lines/s")
    return [replace(plain(f"{name}, {label}", rates, "lines/s"), peer=name)]


def _peer_rate(log: Log, scratch: Path) -> float:
    """Lines a second of one run, which must keep just the events that count."""
    command = [sys.executable, "-m", "opentab_tools.bench.spark_dedupe_peer", str(log.home.log_path), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OpentabError(f"Spark's own operator failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    rate, kept = done.stdout.split()[-2:]
    if int(kept) != log.event_count:
        raise OpentabError(f"Spark's own operator kept {kept} events of {log.event_count:,}")
    shutil.rmtree(scratch)
    return float(rate)


def _receipts(log: Log, repeats: int, work_dir: Path, say: Say) -> list[Figure]:
    """How long a receipt takes over HTTP, of ids at random, and of ids that nobody has sent."""
    home = copy_home(log.home, work_dir / "receipts", dedupe=ON)
    ids = _some_ids(log.home)
    bill_log(home)
    say(f"asking for {len(ids):,} receipts")
    with served(home, workers=1) as server, closing(HttpLine(server.port)) as line:
        for id_ in ids[:RECEIPTS_WARM_UP]:
            line.get(f"/v1/events/{quote(id_, safe='')}")
        known_ms = [[_receipt_ms(line, id_, 200) for id_ in ids] for _ in range(repeats)]
        strange_ms = [[_receipt_ms(line, f"nobody-{one}", 404) for one in range(len(ids))] for _ in range(repeats)]
    _remove(home)
    label = f"{log.event_count:,} ids remembered"
    return [
        plain(f"p50 of a receipt, {label}", [percentile(ms, 50) for ms in known_ms], "ms"),
        at_most(f"p99 of a receipt, {label}", [percentile(ms, 99) for ms in known_ms], "ms", RECEIPT_P99_MS_MAX),
        at_most(f"p99 of no receipt, {label}", [percentile(ms, 99) for ms in strange_ms], "ms", RECEIPT_P99_MS_MAX),
    ]


def _receipt_ms(line: HttpLine, id_: str, wanted: int) -> float:
    began = time.perf_counter()
    status, answer = line.get(f"/v1/events/{quote(id_, safe='')}")
    took = time.perf_counter() - began
    if status != wanted or (wanted == 200 and answer["state"] != "counted"):
        raise OpentabError(f"the receipt of {id_} is {status} {answer}, not {wanted}")
    return took * 1000


def _some_ids(home: Home) -> list[str]:
    """Ids from all over a log, in no order."""
    log = DirectoryLog(home.log_path)
    places = [(partition, number) for partition, numbers in log.pending().items() for number in numbers]
    ids = []
    for partition, number in places:
        lines = bytes(log.read(partition, number).body).splitlines()
        few = lines[:: max(1, len(lines) * len(places) // RECEIPTS)]
        ids += [json.loads(line)["id"] for line in few]
    random.Random(1).shuffle(ids)
    return ids


def _freshness(repeats: int, work_dir: Path, say: Say) -> list[Figure]:
    """What it adds to the freshness of small batches."""
    p50_ms: dict[str, list[float]] = {OFF: [], ON: []}
    for repeat in range(repeats):
        for window, kept in p50_ms.items():
            settings = f'[billing]\ndedupe_window = "{window}"\n'
            path = work_dir / f"fresh-{window}-{repeat}"
            measured = measure_freshness(
                path,
                seconds=FRESHNESS_SECONDS,
                warm_up=FRESHNESS_WARM_UP_SECONDS,
                rate=1_000,
                say=say,
                settings=settings,
            )
            kept.append(percentile(measured.visible_ms, 50))
    added = [on - off for on, off in zip(p50_ms[ON], p50_ms[OFF], strict=True)]
    figures = [plain(f"p50 from accepted to visible, dedupe {w}", ms, "ms") for w, ms in p50_ms.items()]
    return [*figures, at_most("dedupe adds to the p50 of small batches", added, "ms", FRESHNESS_MS_MAX)]
