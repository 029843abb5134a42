"""The laws of the journal, on real logs and real Delta tables, with crashes as exceptions and without Spark.

Any order, any split into batches, any replay, any crash: for each customer, day and type the entries
sum to the events; given the same batches the journal is the same.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import batch_of_segments, bill_ready, log_of, names_of, new_home, open_job, waiting_batch
from opentab.audit import verify
from opentab.core.errors import Fenced, LedgerBug, LogError
from opentab.core.periods import to_us
from opentab.core.records import BatchRecord
from opentab.ledger import balances
from opentab.ledger.journal import Journal, merge_files
from opentab.ledger.totals import customer_totals
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config, crash
from opentab.runtime.config import Home
from product import event


class Crash(Exception):
    """The process died here."""


@dataclass(frozen=True)
class Step:
    """Take so many segments with so many tasks, and perhaps die at a moment of it."""

    segments: int
    tasks: int
    dies_at: str | None


moments = st.sampled_from([None, None, None, "taken", "staged", "committed", "archived", "compacting", "snapshot"])
steps = st.builds(Step, st.integers(1, 3), st.integers(1, 2), moments)
events = st.builds(
    lambda customer, day, month, amount, kind: event(
        customer, f"{amount / 1_000_000:.6f}", f"2026-{month:02d}-{day:02d}T10:00:00Z", kind
    ),
    st.sampled_from(["ann", "bob"]),
    st.integers(1, 28),
    st.integers(1, 3),
    st.integers(-(10**9), 10**9),
    st.sampled_from(["CALL", "DATA"]),
)
segments = st.lists(
    st.lists(st.one_of(events, events, st.just("nonsense")), min_size=1, max_size=4), min_size=1, max_size=8
)


def drive(home: Home, script: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bill everything that is in the log, dying and starting again as the script says."""
    run = 0
    job = open_job(home, f"run{run}")
    pending = [*script, *[Step(3, 2, None)] * 100]
    for step in pending:
        unread = log_of(job).unread(job.offsets)
        if not unread:
            return

        def moment(name: str, dies_at: str | None = step.dies_at) -> None:
            if name == dies_at:
                raise Crash(name)

        with monkeypatch.context() as patched:
            patched.setattr(crash, "moment", moment)
            try:
                job.bill(batch_of_segments(job, names_of(log_of(job), unread, step.segments), step.tasks))
                job.journal.compact(run=job.run, files_max=3)
                balances.write_snapshot(job.journal, home.calendar)
            except Crash:
                run += 1
                job = open_job(home, f"run{run}")


def entry_sums(home: Home) -> dict[tuple[object, ...], tuple[int, int]]:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    sums: Counter[tuple[object, ...]] = Counter()
    counts: Counter[tuple[object, ...]] = Counter()
    for row in journal.entries().to_table().to_pylist():
        key = (str(row["day"]), row["customer"], row["type"])
        sums[key] += row["amount_micros"]
        counts[key] += row["event_count"]
    return {key: (sums[key], counts[key]) for key in counts}


def wanted_sums(lines: list[str]) -> dict[tuple[object, ...], tuple[int, int]]:
    """By the json module and integers alone."""
    import json
    from decimal import Decimal

    sums: Counter[tuple[object, ...]] = Counter()
    counts: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        if line != "nonsense":
            row = json.loads(line)
            key = (row["time"][:10], row["customer"], row["type"])
            sums[key] += int(Decimal(row["amount"]).scaleb(6))
            counts[key] += 1
    return {key: (sums[key], counts[key]) for key in counts}


def facts(record: BatchRecord) -> tuple[object, ...]:
    return (record.batch, record.taken, record.watermark_us, record.final_us, record.newest_us, record.event_count,
            record.sum_micros, record.rejections)  # fmt: skip


@examples(40)
@given(segments, st.lists(steps, max_size=8), st.lists(st.sampled_from(["a", "b"]), min_size=8, max_size=8))
def test_any_order_split_and_crash_gives_the_events(
    batches: list[list[str]], script: list[Step], partitions: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        home = new_home(Path(directory) / "home")
        log = DirectoryLog(home.log_path)
        for lines, partition in zip(batches, partitions, strict=False):
            Producer(log, partition).append("\n".join(lines).encode())
        drive(home, script, monkeypatch)
        lines = [line for batch in batches for line in batch]
        assert entry_sums(home) == wanted_sums(lines)
        journal = Journal.open(home.ledger, home.identity)
        assert journal is not None
        records = journal.batches()
        assert sum(record.rejection_count for record in records) == lines.count("nonsense")
        assert sum(total.event_count for total in customer_totals(journal, home.calendar)) == len(lines) - lines.count(
            "nonsense"
        )
        marks = [record.watermark_us for record in records if record.watermark_us is not None]
        assert marks == sorted(marks), "the watermark never falls"

        # The same batches again, in a new home and without a crash: the same journal.
        again = new_home(Path(directory) / "again")
        job = open_job(again, "again")
        for partition, numbers in {p: range(1, n + 1) for p, n in _last(records).items()}.items():
            for number in numbers:
                source = log.path_of(partition, number)
                (log_of(job).incoming_path(partition, number)).write_bytes(source.read_bytes())
        for record in records:
            names = [
                log_of(job).incoming_path(p, n).name for p, (a, b) in record.taken.items() for n in range(a, b + 1)
            ]
            replayed = job.bill(batch_of_segments(job, names, 1))
            assert replayed is not None
            assert facts(replayed) == facts(record)
        assert entry_sums(again) == entry_sums(home)


def _last(records: list[BatchRecord]) -> dict[str, int]:
    return {name: state.segment for name, state in records[-1].partitions.items()} if records else {}


def test_two_writers_of_one_batch(home: Home, append: Callable[..., int]) -> None:
    append(event())
    first, second = open_job(home, "first"), open_job(home, "second")
    names = names_of(log_of(first), log_of(first).unread({}), 1)
    assert first.bill(batch_of_segments(first, names, 1)) is not None
    with pytest.raises(Fenced, match="another pipeline has taken over"):
        second.bill(batch_of_segments(second, names, 1))
    assert sum(count for _, count in entry_sums(home).values()) == 1


def test_two_compactions_of_the_same_files(home: Home, append: Callable[..., int]) -> None:
    job = open_job(home, "run")
    for _ in range(4):
        append(event())
        assert (
            job.bill(batch_of_segments(job, names_of(log_of(job), log_of(job).unread(job.offsets), 1), 1)) is not None
        )
    before = entry_sums(home)
    real = merge_files
    raced = False

    def race(*args: Any, **options: Any) -> Any:
        nonlocal raced
        if not raced:  # the other program merges the same files while we do
            raced = True
            assert job.journal.compact(run="other", files_max=2) > 0
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("opentab.ledger.journal.merge_files", race)
        assert job.journal.compact(run="mine", files_max=2) == 0
    assert entry_sums(home) == before


def test_a_batch_holds_all_of_its_ranges_and_lost_segments_are_named(home: Home, append: Callable[..., int]) -> None:
    for _ in range(3):
        append(event())
    job = open_job(home, "run")
    name = log_of(job).incoming_path("default", 2).name
    with pytest.raises(LedgerBug, match=r"offsets \[\(1, 2\)\] were taken instead of 0 up to 2"):
        job.bill(batch_of_segments(job, [name]))
    log_of(job).incoming_path("default", 1).unlink()
    with pytest.raises(LogError, match="segment 1 of log partition 'default' is gone"):
        job.bill(batch_of_segments(job, [log_of(job).incoming_path("default", 1).name, name]))


def test_who_takes_over_reads_on_after_a_last_commit_of_the_other(home: Home, append: Callable[..., int]) -> None:
    for _ in range(3):
        append(event())
    new, old = open_job(home, "new"), open_job(home, "old")
    planned = waiting_batch(new)
    assert planned is not None
    old.bill(batch_of_segments(old, [log_of(old).incoming_path("default", number).name for number in (1, 2)]))
    assert log_of(old).pending() == {"default": [3]}, "it has archived what it billed"
    with pytest.raises(Fenced):
        new.bill(planned)  # segments are read wherever they lie
    new.reload()
    bill_ready(new)
    assert new.offsets == {"default": 3}
    assert [record.event_count for record in new.journal.batches()] == [2, 1]


def test_what_is_final_stays_final_if_more_lateness_is_allowed_later(home: Home, append: Callable[..., int]) -> None:
    def bill(*lines: str) -> None:
        append(*lines)
        current = open_job(config.load(home.path), "run")
        current.bill(
            batch_of_segments(current, names_of(log_of(current), log_of(current).unread(current.offsets), 1), 1)
        )
        balances.write_snapshot(current.journal, home.calendar)

    home.path.mkdir(exist_ok=True)
    (home.path / "opentab.toml").write_text('[billing]\nallowed_lateness = "1h"\n')
    bill(event("ann", "5.00", "2026-01-10T00:00:00Z"))
    bill(event("ann", "1.00", "2026-02-10T00:00:00Z"))
    (home.path / "opentab.toml").write_text('[billing]\nallowed_lateness = "300d"\n')
    bill(event("ann", "2.00", "2026-01-11T00:00:00Z"))
    bill(event("ann", "0.50", "2026-02-11T00:00:00Z"))
    journal = Journal.open(home.ledger, home.identity)
    totals = {t.period: (t.status, t.amount_micros) for t in customer_totals(journal, home.calendar)}
    assert totals == {"2026-01": ("final", 5_000_000), "2026-02": ("open", 3_500_000)}


def test_an_event_of_the_year_one_breaks_nothing(home: Home, append: Callable[..., int]) -> None:
    append(event(time="0001-01-01T00:00:00Z"))
    job = open_job(home, "run")
    job.bill(batch_of_segments(job, names_of(log_of(job), log_of(job).unread({}), 1), 1))
    (total,) = customer_totals(job.journal, home.calendar)
    assert (total.period, total.amount_micros) == ("0001-01", 1_000_000)


def test_the_clock_moves_a_silent_log_in_a_batch_of_its_own(home: Home, append: Callable[..., int]) -> None:
    append(event("ann", "5.00", "2026-01-10T00:00:00Z"))
    job = open_job(home, "run")
    assert job.tick(0) is None, "nothing is known yet"
    assert job.bill(batch_of_segments(job, names_of(log_of(job), log_of(job).unread({}), 1), 1)) is not None
    assert job.tick(to_us(datetime(2026, 2, 2, tzinfo=UTC))) is None, "a clock behind a producer's tells nothing"
    now_us = to_us(datetime.now(UTC))
    ticked = job.tick(now_us)
    assert ticked is not None
    assert (ticked.batch, ticked.taken, ticked.clock_us) == (2, {}, now_us)
    assert ticked.watermark_us == now_us - home.rules.out_of_orderness_us
    append(event("ann", "1.00", "2026-01-11T00:00:00Z"))
    assert job.tick(now_us) is None, "unread data is never overtaken by the clock"
    assert job.bill(batch_of_segments(job, names_of(log_of(job), log_of(job).unread(job.offsets), 1), 1)) is not None
    totals = {t.period: t for t in customer_totals(job.journal, home.calendar)}
    assert (totals["2026-01"].status, totals["2026-01"].amount_micros) == ("final", 5_000_000)
    (adjusted,) = [t for p, t in totals.items() if p != "2026-01"]
    assert adjusted.adjustments[0].period == "2026-01"
    report = verify(home, job.journal)
    assert report.agrees, report
