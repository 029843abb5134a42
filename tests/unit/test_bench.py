"""The arithmetic of the bench: figures from batches that a journal might hold, their table and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgers import bill, bill_waiting
from opentab.core.errors import MachineError, OpentabError
from opentab.runtime.config import Home
from opentab_tools.bench.audited import audit
from opentab_tools.bench.catch_up import CatchUp
from opentab_tools.bench.closing import MeasuredClosing, closing_figures
from opentab_tools.bench.end_to_end import EndToEnd
from opentab_tools.bench.figures import Figure, as_json, at_least, at_most, plain, render
from opentab_tools.bench.freshness import MeasuredFreshness, freshness_figures, percentile
from opentab_tools.bench.ingest import age_figures, end_to_end_figures, run_figures
from opentab_tools.bench.ledger_age import Age, SyntheticLedger
from opentab_tools.bench.load_result import Load
from opentab_tools.bench.month_log import write_month
from opentab_tools.bench.reads import (
    BusyRound,
    IdleTurn,
    Ingest,
    MeasuredReads,
    check_bills,
    ingest_rate,
    reads_figures,
)
from opentab_tools.bench.redis_peer import parse_redis_benchmark
from opentab_tools.bench.replica import ReplicaTurn, measure_replica, replica_figures
from opentab_tools.bench.wrk_load import parse_wrk, script
from opentab_tools.measuring.measured_run import (
    DRIVER,
    JVM,
    TOTAL,
    WORKERS,
    Committed,
    MeasuredRun,
    MemoryPeaks,
    committed,
    link_log,
)
from opentab_tools.servers.required_tools import find_tools
from opentab_tools.servers.served_home import FOLLOWER, WORKER, Memory
from product import event

SECOND = 1_000_000
MIB = 2**20


def a_run(*batches: tuple[float, int], memory: dict[str, int] | None = None) -> MeasuredRun:
    """A run that started at second 1000; each batch is its second and its events."""
    at = [Committed(n, int((1000 + seconds) * SECOND), events) for n, (seconds, events) in enumerate(batches, start=1)]
    return MeasuredRun(1000 * SECOND, tuple(at), memory or {}, load_before=0.5)


def test_a_run_is_timed_from_its_start_to_its_last_commit() -> None:
    run = a_run((8, 800_000), (10, 800_000), (11, 500_000), (12, 600_000))
    assert run.event_count == 2_700_000
    assert run.first_commit_seconds == 8
    assert run.events_per_second == 225_000
    assert run.warm_events_per_second == 550_000  # 1.1M events in the two seconds behind batch 2


def test_two_batches_are_not_warm_yet() -> None:
    assert a_run((8, 800_000), (10, 800_000)).warm_events_per_second is None


def test_figures_of_a_journal(tmp_path: Path) -> None:
    ledger = SyntheticLedger(tmp_path)
    for _ in range(4):
        ledger.commit()
    records = ledger.journal.batches()
    run = MeasuredRun(records[0].committed_us - 2 * SECOND, committed(records), {}, 0.0)
    assert run.event_count == 4
    assert run.first_commit_seconds == 2.0
    seconds = (records[3].committed_us - records[1].committed_us) / SECOND
    assert run.warm_events_per_second == pytest.approx(2 / seconds)


def test_ratios_are_taken_pair_by_pair() -> None:
    # The machine halves its speed between the pairs: the ratio does not notice.
    few = [a_run((2, 10), (3, 10), (4, 1000)), a_run((4, 10), (6, 10), (8, 1000))]
    many = [a_run((2, 10), (3, 10), (4, 950)), a_run((4, 10), (6, 10), (8, 950))]
    figures = {figure.name: figure for figure in run_figures({100: few, 1_000_000: many})}
    ratio = figures["warm throughput, 1,000,000 to 100 customers"]
    assert ratio == Figure(ratio.name, 0.95, "ratio", "≥ 0.9", True, (0.95, 0.95))
    warm = figures["warm throughput, 100 customers"]
    assert (warm.value, warm.spread, warm.met) == (750, (500, 1000), False)
    assert figures["first commit, 100 customers"].goal == "≤ 12.0"


def test_a_log_too_small_to_warm_up_leaves_those_figures_out() -> None:
    names = [figure.name for figure in run_figures({100: [a_run((5, 10))], 1000: [a_run((5, 10))]})]
    assert not any(name.startswith("warm") for name in names)
    assert "throughput from start, 1,000 to 100 customers" in names


def test_end_to_end_is_until_the_replica_has_it() -> None:
    def folded(seconds: float) -> EndToEnd:
        run = a_run((8, 800_000), (10, 800_000), (11, 500_000), (12, 500_000))
        return EndToEnd(run, int((1000 + seconds) * SECOND), replica_bytes=1)

    figures = {f.name: f for f in end_to_end_figures({100: [folded(12), folded(14)], 1_000: [folded(15), folded(20)]})}
    assert figures["end to end, 100 customers"].spread == (250_000, 500_000)  # a million behind batch 2, at second 10
    assert figures["end to end from start, 1,000 customers"].spread == (130_000, pytest.approx(2_600_000 / 15))
    ratio = figures["end to end, 1,000 to 100 customers"]
    assert (ratio.spread, ratio.goal, ratio.met) == ((0.4, 0.4), "≥ 0.6", False)


def test_memory_peaks_by_role_and_at_one_moment() -> None:
    peaks = MemoryPeaks()
    peaks.add([(DRIVER, 100), (JVM, 500), (WORKERS, 50), (WORKERS, 60)])
    peaks.add([(DRIVER, 300), (JVM, 200)])
    assert peaks.bytes_max == {DRIVER: 300, JVM: 500, WORKERS: 110, TOTAL: 710}
    memory = dict.fromkeys((DRIVER, JVM, WORKERS, TOTAL), 64 * MIB)
    figures = run_figures({100: [a_run((5, 10), memory=memory)]})
    assert Figure("peak memory of JVM, 100 customers", 64, "MiB") in figures


def test_memory_of_a_real_process() -> None:
    peaks = MemoryPeaks()
    peaks.sample(os.getpid())
    assert peaks.bytes_max[TOTAL] >= peaks.bytes_max[DRIVER] > 10 * MIB
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    peaks.sample(ended.pid)


def test_age_figures() -> None:
    young = Age(100, (40.0,), (20.0, 22.0, 90.0), (9.0,), live_files_max=130, log_files_max=200)
    old = Age(10_000, (42.0,), (21.0, 27.5, 30.0), (9.0,), live_files_max=132, log_files_max=300)
    figures = {figure.name: figure for figure in age_figures([young, old])}
    commit = figures["commit, 10,000 to 100 batches"]
    assert (commit.value, commit.goal, commit.met) == (1.25, "≤ 1.1", False)
    assert figures["live files, 10,000 to 100 batches"].met
    assert (figures["batch, 10,000 to 100 batches"].value, figures["batch after 10,000 batches"].value) == (1.05, 42.0)
    assert figures["commit after 100 batches"].spread == (20.0, 90.0)
    assert figures["log files after 10,000 batches"].value == 300


def test_ages_are_compared_from_checkpoint_to_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentab_tools.bench.ingest.CHECKPOINT_COMMITS", 2)
    young, old = (
        Age(batches, ms, ms, (9.0,), 1, 1) for batches, ms in ((100, (10.0,) * 4), (900, (10.0, 10.0, 12.0, 12.0)))
    )
    (commit,) = [figure for figure in age_figures([young, old]) if figure.name == "commit, 900 to 100 batches"]
    assert (commit.value, commit.spread) == (1.1, (1.0, 1.2))


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (at_least("a", [1, 2, 3], "x", 2), True),
        (at_least("a", [1, 1.9, 3], "x", 2), False),
        (at_most("a", [1, 2, 3], "x", 2), True),
        (at_most("a", [1, 2.1, 3], "x", 2), False),
        (plain("a", [1], "x"), None),
    ],
)
def test_goals(figure: Figure, met: bool | None) -> None:
    assert figure.met is met


def test_the_document() -> None:
    figures = [plain("a", [1], "s"), at_least("b", [2, 4], "events/s", 400_000)]
    document = json.loads(json.dumps(as_json({"cpu_count": 2}, figures)))
    assert document == {
        "machine": {"cpu_count": 2},
        "figures": [
            {"name": "a", "value": 1, "unit": "s", "goal": None, "met": None, "spread": None, "peer": None},
            {
                "name": "b",
                "value": 3,
                "unit": "events/s",
                "goal": "≥ 400,000",
                "met": False,
                "spread": [2, 4],
                "peer": None,
            },
        ],
    }


def test_the_table() -> None:
    figures = [
        at_least("warm throughput", [512_345.6, 400_000.2, 600_000], "events/s", 400_000),
        at_most("ratio", [1.234], "ratio", 1.1),
        plain("live files", [132], "files"),
    ]
    assert render(figures) == "\n".join(
        [
            "figure             value  unit        least     most  goal       met",
            "warm throughput  512,346  events/s  400,000  600,000  ≥ 400,000  yes",
            "ratio              1.234  ratio                       ≤ 1.1      NO",
            "live files           132  files",
        ]
    )


def test_a_linked_log_is_the_same_and_moves_alone(home: Home, append: object, tmp_path: Path) -> None:
    from opentab.log import DirectoryLog
    from opentab.runtime import config

    append("{}")  # type: ignore[operator]
    append("{}")  # type: ignore[operator]
    target = config.load(tmp_path / "copy")
    link_log(home, target)
    assert DirectoryLog(target.log_path).pending() == {"default": [1, 2]}
    assert DirectoryLog(target.log_path).archive_upto({"default": 2}) == 1
    assert DirectoryLog(home.log_path).pending() == {"default": [1, 2]}


def test_closings_are_held_against_their_goals() -> None:
    def closing(customers: int, seconds: float, during_ms: tuple[float, ...]) -> MeasuredClosing:
        return MeasuredClosing(
            customers, seconds, seconds + 1, (100.0, 200.0, 300.0), during_ms, 40 * customers, 600 * customers
        )

    rounds = [[closing(1_000, 1.0, ()), closing(10_000, 70.0, (500.0,))] for _ in range(2)]
    figures = {f.name: f for f in closing_figures(rounds)}
    assert (figures["close, 1,000 customers"].met, figures["close, 10,000 customers"].met) == (True, False)
    assert "batch during to before, 1,000 customers" not in figures, "no batch came meanwhile"
    ratio = figures["batch during to before, 10,000 customers"]
    assert (ratio.value, ratio.met) == (2.5, False)
    growth = figures["seconds a customer, 10,000 to 1,000"]
    assert (growth.value, growth.met) == (pytest.approx(7.0), False)
    assert figures["an invoice in the ledger, 1,000 customers"].value == 40
    assert figures["close, 10,000 customers"].spread == (70.0, 70.0)


WRK_SAID = """\
Running 10s test @ http://127.0.0.1:8080
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.28ms    1.09ms  55.63ms   91.64%
    Req/Sec     9.83k   191.70    10.23k    86.67%
  Latency Distribution
     50%  890.00us
     75%    3.64ms
     90%    5.89ms
     99%    1.20s
  98271 requests in 10.01s, 62.69MB read
Requests/sec:   9817.36
Transfer/sec:      6.26MB
"""
REDIS_SAID = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"GET","79601.56","0.224","0.072","0.199","0.391","0.599","2.047"
"""


def test_what_wrk_says() -> None:
    assert parse_wrk(WRK_SAID) == Load(per_second=9817.36, p50_ms=pytest.approx(0.89), p99_ms=1200.0)


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ("  Non-2xx or 3xx responses: 12\n", "12 answers were not 2xx, and 0 connections had errors"),
        (
            "  Socket errors: connect 1, read 2, write 0, timeout 4\n",
            "0 answers were not 2xx, and 7 connections had errors",
        ),
    ],
)
def test_a_load_with_errors_is_no_measurement(more: str, fact: str) -> None:
    with pytest.raises(OpentabError) as raised:
        parse_wrk(WRK_SAID.replace("Requests/sec", f"{more}Requests/sec"))
    assert raised.value.fact == fact


def test_what_redis_benchmark_says() -> None:
    assert parse_redis_benchmark(REDIS_SAID) == Load(79601.56, 0.199, 0.599)


@pytest.mark.parametrize("parse", [parse_wrk, parse_redis_benchmark])
def test_a_program_that_says_something_else(parse: Callable[[str], Load]) -> None:
    with pytest.raises(OpentabError, match="unable to connect"):
        parse("unable to connect\n")


def test_wrk_is_paced_by_the_wait_of_each_connection() -> None:
    assert "delay" not in script(1000, seed=1)
    assert "math.random(0, 1000 - 1)" in script(1000, seed=1)
    assert "return 16\n" in script(1000, seed=1, per_second=2000)


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MachineError) as raised:
        find_tools("wrk", "redis-server")
    assert str(raised.value) == "wrk is missing (on Debian run: apt-get install wrk redis-server)"


def test_reads_are_held_against_redis_turn_by_turn() -> None:
    memory = [(FOLLOWER, Memory(300 * MIB, 200 * MIB, 100 * MIB)), (WORKER, Memory(64 * MIB, 32 * MIB, 16 * MIB))]
    # The machine halves its speed between the turns: the ratio does not notice.
    one = [IdleTurn(Load(s * 10_000, 2, p99), Load(s * 40_000, 0.2, 0.5), memory) for s, p99 in ((2, 8), (1, 30))]
    two = [IdleTurn(Load(15_000, 2, 9), Load(50_000, 0.2, 0.5), memory)] * 2
    slow = Ingest(300_000, Load(2_000, 5, 20))
    busy = BusyRound(
        alone=Ingest(400_000, None), paced=Ingest(360_000, Load(1_900, 1, 3)), full={1: slow, 2: slow}, redis=slow
    )
    figures = {f.name: f for f in reads_figures(MeasuredReads(idle={1: one, 2: two}, busy=[busy, busy]))}
    ratio = figures["reads to Redis GET, 1 worker"]
    assert ratio == Figure(ratio.name, 0.25, "ratio", "≥ 0.15", True, (0.25, 0.25), peer="Redis")
    assert figures["reads to Redis GET, 2 workers"].goal is None
    p99 = figures["p99 of reads, 1 worker"]
    assert (p99.value, p99.goal, p99.met) == (19, "≤ 10.0", False)
    assert (figures["Redis GET"].spread, figures["Redis GET"].peer) == ((40_000, 80_000), "Redis")
    assert figures["reads to Redis GET while ingesting, 2 workers"].value == 1
    assert figures["ingest to that without reads, about 2,000 reads/s"].value == 0.9
    assert figures["ingest to that without reads, reads at full speed, 2 workers"].value == 0.75
    assert figures["reads that came of about 2,000"].value == 1_900
    assert figures["PSS of the HTTP worker, 1 worker"].value == 32
    assert figures["USS of the follower, 2 workers"].value == 100


def test_a_log_too_small_for_a_round_of_redis_leaves_those_figures_out() -> None:
    turn = IdleTurn(Load(1, 1, 1), Load(4, 1, 1), [(WORKER, Memory(1, 1, 1)), (FOLLOWER, Memory(1, 1, 1))])
    none = Ingest(1, None)
    busy = BusyRound(alone=none, paced=Ingest(1, Load(1, 1, 1)), full={1: Ingest(1, Load(1, 1, 1))}, redis=none)
    names = [figure.name for figure in reads_figures(MeasuredReads(idle={1: [turn]}, busy=[busy]))]
    assert "Redis GET while ingesting" not in names
    assert "reads while ingesting, 1 worker" in names


def test_runs_over_the_same_log_must_bill_the_same() -> None:
    one, other = Ingest(1, None, bill=(5, 70)), Ingest(2, None, bill=(5, 71))
    check_bills([BusyRound(alone=one, paced=one, full={1: one}, redis=one)] * 2)
    with pytest.raises(OpentabError, match="billed differently"):
        check_bills([BusyRound(alone=one, paced=one, full={1: other}, redis=one)])


@pytest.mark.slow
def test_a_run_that_is_billed_wrongly_has_failed(home: Home, tmp_path: Path) -> None:
    bill(home, event("emma", "1.00"))
    expected_path = tmp_path / "planned"
    expected_path.mkdir()
    bills = expected_path / "bills.csv"
    bills.write_text("period,customer,total\n2026-01,emma,1.000000\n", encoding="utf-8")
    audit(home, expected_path=expected_path)
    bills.write_text("period,customer,total\n2026-01,emma,2.000000\n", encoding="utf-8")
    with pytest.raises(OpentabError, match=r"did not agree.*expected bills"):
        audit(home, expected_path=expected_path)
    with pytest.raises(OpentabError, match=r"did not agree.*expected bills"):
        audit(home, expected_path=expected_path, but=("ids",))
    audit(home, expected_path=expected_path, but=("expected bills",))
    audit(home)


def test_an_audit_that_cannot_be_made_has_failed(home: Home) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / "opentab.toml").write_text("no settings", encoding="utf-8")
    with pytest.raises(OpentabError, match="the audit failed"):
        audit(home)


def test_ingest_is_timed_behind_its_first_batch(tmp_path: Path) -> None:
    ledger = SyntheticLedger(tmp_path)
    for _ in range(3):
        ledger.commit()
    records = ledger.journal.batches()
    seconds = (records[2].committed_us - records[0].committed_us) / SECOND
    assert ingest_rate(records) == pytest.approx(2 / seconds)


def test_freshness_is_held_against_its_goals(tmp_path: Path) -> None:
    ledger = SyntheticLedger(tmp_path)
    ledger.commit()
    visible_ms = (*map(float, range(200, 401, 2)), 2_000.0, 2_000.0)
    run = MeasuredFreshness(visible_ms, tuple(ledger.journal.batches()), 2.0, sent=99, sent_per_second=990)
    figures = {figure.name: figure for figure in freshness_figures([run], rate=1_000)}
    assert figures["p50 from accepted to visible, 1,000 events/s"].met
    p99 = figures["p99 from accepted to visible, 1,000 events/s"]
    assert (p99.goal, p99.met) == ("≤ 800.0", False)
    assert figures["from accepted to visible, 1,000 events/s"].spread == (200, 2_000)
    assert figures["batches"].value == 0.5
    under_load = {figure.name: figure for figure in freshness_figures([run], rate=10_000)}
    assert under_load["p50 from accepted to visible, 10,000 events/s"].goal == "≤ 400.0"
    with pytest.raises(OpentabError, match="--seconds"):
        freshness_figures([run, replace(run, visible_ms=(1.0,))], rate=1_000)


def test_percentiles() -> None:
    values = list(range(101))
    assert (percentile(values, 50), percentile(values, 99)) == (50, 99)


def test_replicas_are_held_against_their_goals() -> None:
    turns = [ReplicaTurn(CatchUp(s, 3, 0, 300 * MIB), CatchUp(s, 3, 3, 400 * MIB), 9.0, MIB, MIB) for s in (5, 20, 10)]
    figures = {figure.name: figure for figure in replica_figures(turns, customers=1_000_000, entries=4_000_000)}
    bootstrap = figures["new replica from balances, 1,000,000 customers"]
    assert (bootstrap.value, bootstrap.spread, bootstrap.met) == (10, (5, 20), True)
    rate = figures["journal entries folded, one core"]
    assert (rate.value, rate.met) == (400_000, False)
    assert figures["peak memory without balances"].value == 400


@pytest.mark.slow
def test_a_real_replica_is_measured(home: Home, tmp_path: Path) -> None:
    write_month(home, customers=2_000)
    bill_waiting(home)
    said: list[str] = []
    measured = measure_replica(home, tmp_path / "balances", customers=2_000, repeats=1, say=said.append)
    figures = {figure.name: figure for figure in measured}
    assert figures["journal entries"].value > 2_000
    assert figures["journal entries folded, one core"].value > 0
    assert 0 < figures["new replica from balances, 2,000 customers"].value < 60
    assert figures["on disk from balances"].value > 0.1
    assert figures["peak memory from balances"].value > 50
    assert said == [said[0]]
    assert said[0].startswith("1 of 1: ")
