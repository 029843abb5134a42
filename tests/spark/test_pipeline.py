"""From the log to the journal through real Spark: exact, whatever comes and however it is cut."""

from __future__ import annotations

import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgers import bill, new_home, open_job
from opentab.billing.run import Pipeline, Progress
from opentab.closing.closer import Closer
from opentab.closing.spark_engine import SparkEngine
from opentab.core.errors import ClockMismatch, FileDamaged, HomeMismatch, OpentabError, SchemaMismatch
from opentab.core.events import Reason
from opentab.core.periods import to_us
from opentab.ledger import balances
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.totals import customer_totals
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.simulator.bills import bills_by_own_month, invoiced_by_own_month
from opentab.simulator.generator import Plan, generate, read_bills, read_rejections
from opentab.simulator.invoice_ticker import all_statements
from product import event, opentab
from wire_lines import REFUSED

MONTHS = {"months": 2, "first_period": "2026-01", "events_per_customer": 200, "seed": 7}


@pytest.fixture
def run_once(spark: Any) -> Callable[[Home], Progress]:
    return lambda home: Pipeline(home, once=True, spark=spark).run()


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def entry_sums(home: Home) -> dict[tuple[object, ...], tuple[int, int]]:
    """(day, customer, type) -> micros, events; added up here, without SQL."""
    sums: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in journal_of(home).entries().to_table().to_pylist():
        cell = sums[row["day"], row["customer"], row["type"]]
        cell[0] += row["amount_micros"]
        cell[1] += row["event_count"]
    return {key: (micros, events) for key, (micros, events) in sums.items()}


def own_bills(home: Home) -> dict[tuple[str, str], int]:
    return bills_by_own_month(customer_totals(journal_of(home), home.calendar))


def billed_totals(home: Home) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (t.period, t.customer): (t.amount_micros, t.event_count)
        for t in customer_totals(journal_of(home), home.calendar)
    }


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_totals_are_the_expected_bills(tmp_path: Path, run_once: Callable[[Home], Progress], zone: str) -> None:
    (tmp_path / "opentab.toml").write_text(
        f'[billing]\nzone = "{zone}"\nout_of_orderness = "1h"\nallowed_lateness = "1h"\n'
        "[pipeline]\nbatch_events_max = 100\n"
    )
    home = config.load(tmp_path)
    plan = Plan(
        **MONTHS,
        late_share=0.05,
        beyond_share=0.03,
        bad_share=0.05,
        cloudevents_share=0.2,
        variety_share=0.2,
    )
    generate(plan, home)
    progress = run_once(home)
    assert progress.batches > 3
    by_day: Counter[tuple[str, str]] = Counter()
    for (day, customer, _), (micros, _) in entry_sums(home).items():
        by_day[f"{day:%Y-%m}", customer] += micros  # type: ignore[str-format, arg-type]
    assert by_day == read_bills(home.expected_path)
    assert progress.rejections == sum(read_rejections(home.expected_path).values())
    reasons: Counter[str] = Counter()
    for record in journal_of(home).batches():
        reasons.update(record.rejections)
    assert reasons == {str(reason): count for reason, count in read_rejections(home.expected_path).items()}
    # What is billed in another month than its own is named there, and nothing is lost on the way.
    assert own_bills(home) == read_bills(home.expected_path)
    assert any(total.adjustments for total in customer_totals(journal_of(home), home.calendar))


def test_sources_that_lag_or_fall_silent_lose_nothing(home: Home, run_once: Callable[[Home], Progress]) -> None:
    plan = Plan(
        **MONTHS,
        late_share=0.05,
        beyond_share=0.05,
        sources=3,
        lag=timedelta(minutes=30),
        silence=timedelta(days=9),
    )
    generate(plan, home)
    run_once(home)
    assert own_bills(home) == read_bills(home.expected_path)


def test_a_snapshot_changes_no_total(tmp_path: Path, run_once: Callable[[Home], Progress]) -> None:
    (tmp_path / "opentab.toml").write_text("[pipeline]\nbatch_events_max = 500\nsnapshot_batches = 1000\n")
    home = config.load(tmp_path)
    generate(Plan(**{**MONTHS, "months": 4}, late_share=0.1, beyond_share=0.1), home)  # type: ignore[arg-type]
    run_once(home)
    journal = journal_of(home)
    plain = billed_totals(home)
    for upto in range(1, journal.position + 1, 3):
        shutil.rmtree(home.ledger.path / "balances", ignore_errors=True)
        assert balances.write_snapshot(_upto(journal, upto), home.calendar) == upto
        assert billed_totals(home) == plain
    kept = {row["period"] for row in balances.latest(home.ledger).rows.to_table().to_pylist()}
    assert kept < {period for period, _ in plain}, "what is final leaves the snapshot"
    # One snapshot over another, as in a long run.
    shutil.rmtree(home.ledger.path / "balances")
    for upto in range(1, journal.position + 1, 5):
        balances.write_snapshot(_upto(journal, upto), home.calendar)
    assert billed_totals(home) == plain


def _upto(journal: Journal, batch: int) -> Journal:
    """The journal as it was when `batch` was the last one."""

    class Earlier(Journal):
        position = batch  # type: ignore[assignment]

    return Earlier(journal.root, journal._table)


def test_order_and_cuts_do_not_matter(tmp_path: Path, run_once: Callable[[Home], Progress]) -> None:
    import random

    source = config.load(tmp_path / "source")
    generate(Plan(**MONTHS, late_share=0.05, variety_share=0.1), source)
    log = DirectoryLog(source.log_path)
    from opentab.log import read_segment

    lines = [
        line
        for number in log.pending()["default"]
        for line in bytes(read_segment(log.path_of("default", number)).body).splitlines()
    ]
    results = []
    for seed, events_max in ((1, 100_000), (2, 700)):
        home_path = tmp_path / f"home{seed}"
        home_path.mkdir()
        (home_path / "opentab.toml").write_text(f"[pipeline]\nbatch_events_max = {events_max}\n")
        home = config.load(home_path)
        dice = random.Random(seed)
        dice.shuffle(lines)
        at = 0
        while at < len(lines):
            step = dice.randint(1, 900)
            Producer(DirectoryLog(home.log_path), dice.choice(["a", "b", "default"])).append(
                b"\n".join(lines[at : at + step])
            )
            at += step
        run_once(home)
        results.append(entry_sums(home))
    assert results[0] == results[1]
    assert sum(events for _, events in results[0].values()) == len(lines)


def test_a_replay_writes_the_same_journal(tmp_path: Path, run_once: Callable[[Home], Progress]) -> None:
    first = config.load(tmp_path / "first")
    generate(Plan(**MONTHS, bad_share=0.02, sources=2), first)
    shutil.copytree(first.path, tmp_path / "second")  # file times are lost on the way
    for home in (first, second := config.load(tmp_path / "second")):
        run_once(home)

    def facts(home: Home) -> list[tuple[object, ...]]:
        return [
            (
                r.batch,
                r.partitions,
                r.taken,
                r.watermark_us,
                r.newest_us,
                r.event_count,
                r.sum_micros,
                r.rejections,
            )
            for r in journal_of(home).batches()
        ]

    def rows(home: Home, kind: str) -> list[str]:
        return sorted(map(str, getattr(journal_of(home), kind)().to_table().to_pylist()))

    assert facts(first) == facts(second)
    assert entry_sums(first) == entry_sums(second)
    assert rows(first, "rejections") == rows(second, "rejections")


def test_bad_input_is_kept_with_its_reason_and_place(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    bad = [(line.encode() if isinstance(line, str) else line, reason) for line, reason in REFUSED if line]
    # These times are judged against the arrival, which is now.
    bad = [(line, reason) for line, reason in bad if b"2026-03-0" not in line and b'"time": 1772496000000' not in line]
    append(event(), *[line for line, _ in bad[:40]], "", "  \r", event() + "\r")
    append(*[line for line, _ in bad[40:]], b"\x00" * 100, b"x" * 10_000_000, event(), partition="other")
    progress = run_once(home)
    assert progress.events == 3
    bad += [(b"\x00" * 100, Reason.NOT_JSON), (b"x" * 10_000_000, Reason.NOT_JSON)]
    wanted = Counter((line, reason if len(line) <= 65_536 else Reason.TOO_LARGE) for line, reason in bad)
    log = DirectoryLog(home.log_path)
    seen: Counter[tuple[bytes, str]] = Counter()
    for row in journal_of(home).rejections().to_table().to_pylist():
        seen[row["raw"], row["reason"]] += 1
        partition, _, rest = row["place"].partition("/")
        number, _, at = rest.partition("@")
        data = log.path_of(partition, int(number)).read_bytes()
        assert data[int(at) :].startswith(row["raw"] + b"\n"), "the place leads to the very bytes"
        assert row["detail"]
    assert seen == wanted


def test_empty_inputs_are_no_input(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append("")
    append("", " ", "\t\r")
    progress = run_once(home)
    assert (progress.events, progress.rejections) == (0, 0)
    assert journal_of(home).position == 1
    assert run_once(home).batches == 0


def test_the_checkpoint_is_of_no_account(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    for amount in ("1", "2", "4"):
        append(event(amount=amount))
        run_once(home)
        shutil.rmtree(home.checkpoint_path, ignore_errors=True)
    assert billed_totals(home) == {("2026-01", "emma"): (7_000_000, 3)}
    assert [r.taken for r in journal_of(home).batches()] == [{"default": (n, n)} for n in (1, 2, 3)]


def test_sums_beyond_64_bits_stay_exact(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append(*[event(amount="999999999.999999")] * 10_000)
    run_once(home)
    assert billed_totals(home) == {("2026-01", "emma"): (999_999_999_999_999 * 10_000, 10_000)}
    balances.write_snapshot(journal_of(home), home.calendar)
    assert billed_totals(home) == {("2026-01", "emma"): (999_999_999_999_999 * 10_000, 10_000)}
    assert journal_of(home).batches()[0].amount_micros == 999_999_999_999_999 * 10_000


def test_batches_are_bounded(tmp_path: Path, run_once: Callable[[Home], Progress]) -> None:
    (tmp_path / "opentab.toml").write_text("[pipeline]\nbatch_events_max = 100\n")
    home = config.load(tmp_path)
    from opentab.log.ingest import ingest

    body = "".join(event(amount=str(i)) + "\n" for i in range(1000)).encode()
    ingest(iter([body]), Producer(DirectoryLog(home.log_path)), lines_max=home["pipeline.batch_events_max"])
    progress = run_once(home)
    assert progress.batches >= 10
    assert max(r.event_count for r in journal_of(home).batches()) <= 100
    assert billed_totals(home) == {("2026-01", "emma"): (sum(range(1000)) * 1_000_000, 1000)}


def test_a_heartbeat_tells_that_it_lives(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append(event())
    run_once(home)
    beat = read_heartbeat(home.ledger)
    assert beat is not None
    assert beat.unread_segments in (0, 1)


def test_once_bills_what_it_may_and_says_what_is_held_back(home: Home, append: Callable[..., int], spark: Any) -> None:
    """Through Spark's tasks; the clock decides when the rest is billed."""
    now = datetime.now(UTC)
    append(event("ann", "1.00"), partition="good")
    for _ in range(2):
        Producer(DirectoryLog(home.log_path), "ahead", clock=lambda: now + timedelta(hours=2)).append(
            event("ann", "2.00").encode()
        )
    with pytest.raises(ClockMismatch, match="log partition 'ahead' is held back"):
        Pipeline(home, once=True, spark=spark).run()
    last = journal_of(home).last()
    assert last is not None and (last.event_count, set(last.partitions)) == (1, {"good"})
    beat = read_heartbeat(home.ledger)
    assert beat is not None and (beat.held_back, beat.caught_up) == (1, False)
    assert "opentab log clock --restart" in (beat.trouble or "")
    progress = Pipeline(home, once=True, spark=spark, clock=lambda: now + timedelta(minutes=61)).run()
    assert (progress.events, progress.unread, progress.trouble) == (2, 0, None)


def test_what_is_fixed_stays_fixed(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append(event())
    run_once(home)
    for text, fact in (('zone = "Asia/Tokyo"', "made with 'UTC'"), ('currency = "USD"', "made with 'EUR'")):
        (home.path / "opentab.toml").write_text(f"[billing]\n{text}\n")
        with pytest.raises(HomeMismatch, match=fact):
            run_once(config.load(home.path))


def test_another_schema_version_is_left_alone(
    home: Home,
    append: Callable[..., int],
    run_once: Callable[[Home], Progress],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append(event())
    run_once(home)
    for version, age in ((0, "newer"), (2, "older")):
        monkeypatch.setattr("opentab.tables.table.SCHEMA_VERSION", version)
        with pytest.raises(SchemaMismatch, match=age):
            run_once(home)


def test_what_failed_in_a_task_is_told(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append(event())
    Journal.create(home.ledger, home.identity)
    (home.ledger / "journal" / "kind=entry").path.write_text("no directory")
    with pytest.raises(OpentabError, match=r"^a Spark task failed: (NotADirectory|FileExists)Error: ") as error:
        run_once(home)
    assert not error.value.retry_helps


def test_a_damaged_segment_stops_the_job_with_its_name(
    home: Home, append: Callable[..., int], run_once: Callable[[Home], Progress]
) -> None:
    append(event())
    path = DirectoryLog(home.log_path).incoming_path("default", 1)
    good = path.read_bytes()
    path.write_bytes(good.replace(b"1.00", b"9.00"))
    with pytest.raises(OpentabError, match=r"default-000000000001.seg is damaged"):
        run_once(home)
    path.write_bytes(good)
    assert run_once(home).events == 1


def test_spark_and_a_reader_issue_the_same_invoices(tmp_path: Path, run_once: Callable[[Home], Progress]) -> None:
    """One text for both: what Spark's tasks issued, DuckDB issues from the same journal."""
    path = tmp_path / "spark"
    path.mkdir()
    (path / "opentab.toml").write_text("[pipeline]\nbatch_events_max = 3000\nsnapshot_batches = 2\n")
    home = config.load(path)
    plan = {**MONTHS, "late_share": 0.05, "beyond_share": 0.02, "until_final": True, "customers": 30}
    generate(Plan(**plan), home)
    assert run_once(home).invoices > 60
    shutil.copytree(path, tmp_path / "reader")
    again = config.load(tmp_path / "reader")
    for table in ("invoices", "balances"):
        shutil.rmtree(again.ledger.path / table)
    Closer(again, run="again").close_due(journal_of(again))
    on_spark, by_reader = ([{**s.as_json(), "issued_at": None} for s in all_statements(one)] for one in (home, again))
    assert on_spark == by_reader
    expected = {key: micros for key, micros in read_bills(home.expected_path).items() if micros}
    invoiced = invoiced_by_own_month(all_statements(home))
    assert {key: micros for key, micros in invoiced.items() if micros} == expected


def test_spark_closes_what_only_the_balances_know(tmp_path: Path, spark: Any) -> None:
    """The clock closes a month, and no entry came since the balances were drawn."""
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"), event("bob", "1.00", "2026-01-11T00:00:00Z"))
    job = open_job(home, "run")
    on_spark = partial(SparkEngine, spark)
    balances.write_snapshot(job.journal, home.calendar, open_engine=on_spark)
    assert job.tick(to_us(datetime.now(UTC))) is not None
    (issued,) = Closer(home, run="run", open_engine=on_spark).close_due(job.journal)
    assert (issued.position, issued.invoice_count) == (2, 2)
    assert [s.total for s in all_statements(home)] == ["5.00", "1.00"]


def test_spark_cuts_a_large_closing_into_ranges_of_customers(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opentab.closing.closing.PART_ROWS", 10)
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    customers = [f"c{number:03d}" for number in range(40)]
    bill(home, *(event(name, "1.00", "2026-01-10T00:00:00Z") for name in customers), close=False)
    bill(home, event("zoe", "1.00", "2026-02-01T00:00:00Z"), close=False)
    Closer(home, run="run", open_engine=partial(SparkEngine, spark)).close_due(journal_of(home))
    invoices = Invoices.open(home.ledger)
    assert invoices is not None
    parts = [invoices.rows_of([file]).to_table(columns=["customer"])["customer"].to_pylist() for file in invoices.files]
    assert len(parts) > 2
    assert [name for part in parts for name in part] == customers, "each in one part, in their order"


def test_spark_reads_only_what_its_checksums_vouch_for(tmp_path: Path, spark: Any) -> None:
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    bill(home, *(event(f"c{number}", "1.00", "2026-01-10T00:00:00Z") for number in range(400)), close=False)
    bill(home, event("zoe", "1.00", "2026-02-01T00:00:00Z"), close=False)
    (path, *_), *_ = journal_of(home).entry_files(upto=1)
    damaged = (home.ledger / "journal" / path).path
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 4
    damaged.write_bytes(content)
    with pytest.raises(FileDamaged, match=damaged.name):
        Closer(home, run="run", open_engine=partial(SparkEngine, spark)).close_due(journal_of(home))
    assert Invoices.open(home.ledger) is None or not Invoices.open(home.ledger).files  # type: ignore[union-attr]


def test_sparks_driver_asks_whoever_calls_it_for_a_secret(spark: Any) -> None:
    inside = spark._jvm.org.apache.spark.SparkEnv.get().securityManager()
    assert inside.isAuthenticationEnabled()
    assert inside.isEncryptionEnabled()


def test_tasks_run_on_the_python_that_the_settings_name(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    called = tmp_path / "called"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{called}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (home.path / "opentab.toml").open("a") as settings:
        settings.write(f'[spark]\npyspark.python = "{python}"\n')
    opentab("ingest", home=home, stdin=event("ann", "1.00"))
    opentab("run", "--once", home=home, PYSPARK_PYTHON="/nowhere/python")
    assert "opentab.billing.daemon" in called.read_text()
    assert journal_of(home).position == 1
