"""The pipeline is a Spark program: Spark's own event log says who read and billed the events."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import spark_event_log
from ledgers import new_home
from opentab.billing.directory_reader import Options, SegmentStreamReader, next_segments, shared_out
from opentab.billing.log_batch import check_taken, ranges_between
from opentab.billing.run import Pipeline
from opentab.billing.task import LogRange, TaskResult
from opentab.core.errors import LedgerBug
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.log.directory import Waiting
from opentab.runtime import config
from opentab.runtime.config import Home
from processes import check_exact, planner_of, position, streams, wait_for
from product import event, opentab


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def test_every_event_is_read_and_billed_by_the_tasks_of_a_streaming_query(tmp_path: Path) -> None:
    settings = spark_event_log.settings(tmp_path / "event-log")
    home = new_home(tmp_path / "home", f"[pipeline]\nbatch_events_max = 2000\n{settings}")
    opentab("generate", "--months", "2", "--events", "300", "--bad", "0.01", "--until-final", home=home)
    segments = sum(map(len, DirectoryLog(home.log_path).pending().values()))
    opentab("run", "--once", home=home)
    spark_event_log.check(tmp_path / "event-log", home, rows=segments)
    check_exact(home)


def test_a_query_reads_on_past_what_another_pipeline_has_billed(tmp_path: Path, spark: Any) -> None:
    home = new_home(tmp_path / "home")
    for amount in ("1", "2", "4"):
        Producer(DirectoryLog(home.log_path)).append(event(amount=amount).encode())
        Pipeline(home, once=True, spark=spark).run()
        shutil.rmtree(home.checkpoint_path, ignore_errors=True)
    assert [record.taken for record in journal_of(home).batches()] == [{"default": (n, n)} for n in (1, 2, 3)]


def test_a_home_may_have_a_name_that_uris_encode(tmp_path: Path, spark: Any) -> None:
    home = new_home(tmp_path / "a b, ä #1", '[billing]\nout_of_orderness = "0s"\n')
    Producer(DirectoryLog(home.log_path)).append(event().encode())
    Producer(DirectoryLog(home.log_path)).append(event(time="2026-03-01T00:00:00Z").encode())
    progress = Pipeline(home, once=True, spark=spark).run()
    assert (progress.events, progress.invoices) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.path.name]


def test_the_checkpoint_is_deleted_under_a_running_query(
    small_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    pipeline = start("run", home=small_home)
    opentab("generate", "--months", "1", "--events", "300", home=small_home)
    wait_for(lambda: position(small_home) >= 1, "a batch was billed")
    shutil.rmtree(small_home.checkpoint_path)
    opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "300", home=small_home)
    pending = DirectoryLog(small_home.log_path).pending()["default"][-1]
    wait_for(lambda: journal_of(small_home).last().partitions["default"].segment == pending, "it reads on")  # type: ignore[union-attr]
    assert pipeline.poll() is None
    pipeline.terminate()
    pipeline.wait(timeout=60)
    check_exact(small_home)


def test_the_process_that_plans_batches_is_killed(
    small_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    pipeline = start("run", home=small_home)
    wait_for(lambda: streams(small_home, pipeline), "Spark was up")
    opentab("generate", "--months", "1", "--events", "300", home=small_home)
    wait_for(lambda: position(small_home) >= 1, "a batch was billed")
    planner_of(pipeline).kill()
    opentab("generate", "--first-period", "2025-01", "--months", "1", "--events", "300", home=small_home)
    pending = DirectoryLog(small_home.log_path).pending()["default"][-1]
    wait_for(lambda: journal_of(small_home).last().partitions["default"].segment == pending, "it reads on")  # type: ignore[union-attr]
    assert pipeline.poll() is None
    pipeline.terminate()
    assert pipeline.wait(timeout=60) == 0
    check_exact(small_home)


def test_what_is_held_back_is_billed_when_the_clock_gets_there(tmp_path: Path, spark: Any) -> None:
    """The query has passed it over; the next one starts at the journal's offsets, and so before it."""
    home = new_home(tmp_path / "home")
    now = datetime.now(UTC)
    clock = [now]
    log = DirectoryLog(home.log_path)
    for minutes, amount in ((0, "1.00"), (120, "2.00"), (120, "4.00")):
        Producer(log, "ahead", clock=lambda minutes=minutes: now + timedelta(minutes=minutes)).append(
            event(amount=amount).encode()
        )
    Producer(log, "good").append(event(amount="8.00").encode())
    seen: list[int] = []
    pipeline = Pipeline(home, spark=spark, clock=lambda: clock[0])

    def watch(progress: Any) -> None:
        if progress.record is not None and progress.record.batch > len(seen):
            seen.append(progress.record.amount_micros // 1_000_000)
            if sum(seen) == 9:
                clock[0] = now + timedelta(minutes=61)
            if sum(seen) == 15:
                pipeline.stop()

    pipeline.watch = watch
    pipeline.run()
    assert sum(seen) == 15
    assert sum(record.event_count for record in journal_of(home).batches()) == 4


def test_a_query_is_planned_anew_once_there_are_more_cores(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors of a cluster come one by one, and a query is planned for those that are there when it starts."""
    cores = [2]
    monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", property(lambda context: cores[0]))
    home = new_home(tmp_path / "home")
    for _ in range(4):
        Producer(DirectoryLog(home.log_path)).append(event().encode())
    pipeline = Pipeline(home, spark=spark)
    planned = []
    next_query = pipeline._next_query

    def plan(session: Any) -> Any:
        planned.append(cores[0])
        if len(planned) == 2:
            for _ in range(4):
                Producer(DirectoryLog(home.log_path)).append(event().encode())
        return next_query(session)

    def watch(progress: Any) -> None:
        cores[0] = 4
        if progress.batches == 2:
            pipeline.stop()

    monkeypatch.setattr(pipeline, "_next_query", plan)
    pipeline.watch = watch
    pipeline.run()
    assert planned == [2, 4]
    assert [sum(record.tasks.values()) for record in journal_of(home).batches()] == [2, 4]


class TestReader:
    """What the embedded log's data source plans, without Spark."""

    def options(self, log: DirectoryLog, **more: Any) -> Options:
        values: dict[str, Any] = {
            "path": log.path,
            "starts": {},
            "events_max": 1000,
            "tasks": 2,
            "with_bytes": False,
        }
        return Options(**(values | more))

    def test_its_options_survive_as_texts(self, tmp_path: Path) -> None:
        options = self.options(DirectoryLog(tmp_path), starts={"a.b": 3}, with_bytes=True)
        assert Options.of(options.texts()) == options

    def test_it_reads_on_from_the_end_that_it_named_last(self, tmp_path: Path) -> None:
        log = DirectoryLog(tmp_path)
        for _ in range(3):
            Producer(log).append(b"x" * 1500 + b"\n")
        reader = SegmentStreamReader(self.options(log, events_max=50))
        assert reader.initialOffset() == {}
        assert [reader.latestOffset() for _ in range(4)] == [{"default": n} for n in (1, 2, 3, 3)]
        Producer(log, "other").append(b"y\n")
        assert reader.latestOffset() == {"default": 3, "other": 1}

    def test_it_plans_whole_ranges_also_of_what_is_archived(self, tmp_path: Path) -> None:
        log = DirectoryLog(tmp_path)
        for _ in range(4):
            Producer(log).append(b"x\n")
        reader = SegmentStreamReader(self.options(log, starts={"default": 1}))
        end = reader.latestOffset()
        log.archive_upto({"default": 3})
        shares = reader.partitions({"default": 1}, end)
        assert sorted(segment for share in shares for segment in share.segments) == [("default", n) for n in (2, 3, 4)]
        rows = [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]
        assert sorted(row["offset"] for row in rows) == [1, 2, 3] and {row["segment"] for row in rows} == {None}

    def test_it_sends_the_bytes_where_executors_have_other_disks(self, tmp_path: Path) -> None:
        log = DirectoryLog(tmp_path)
        Producer(log).append(b"x\n")
        reader = SegmentStreamReader(self.options(log, with_bytes=True))
        (share,) = reader.partitions({}, reader.latestOffset())
        ((row,),) = [batch.to_pylist() for batch in reader.read(share)]
        assert row["segment"] == log.incoming_path("default", 1).read_bytes()

    def test_the_oldest_come_first_and_at_least_one(self) -> None:
        waiting = {"a": [Waiting(1, "a1", 10**9, 5), Waiting(2, "a2", 1, 7)], "b": [Waiting(1, "b1", 1, 6)]}
        assert [place for place, _ in next_segments(waiting, events_max=1)] == [("a", 1)]
        assert [place for place, _ in next_segments(waiting, events_max=10**9)] == [("a", 1), ("b", 1), ("a", 2)]
        assert next_segments({}, events_max=1) == []

    def test_tasks_get_about_as_many_bytes_each(self) -> None:
        segments = [("a", number) for number in range(1, 7)]
        assert shared_out(segments, [1, 1, 1, 1, 1, 5], 2) == [segments[:5], segments[5:]]
        assert shared_out(segments[:1], [0], 4) == [segments[:1]]


def test_ranges_are_clipped_where_something_is_held_back() -> None:
    assert ranges_between({"a": 2}, {"a": 5, "b": 3, "c": 0}, {"b": 1}) == {"a": (2, 5), "b": (0, 1)}
    assert ranges_between({"a": 5}, {"a": 5}, {}) == {}
    assert ranges_between({"a": 2}, {"a": 5}, {"a": 2}) == {}


def test_a_batch_takes_nothing_but_its_ranges() -> None:
    result = TaskResult([], {"b": LogRange([(0, 1)], None, 0, 0)}, 0, "0", 0, 0, "0", {}, {})
    with pytest.raises(LedgerBug, match="a task has taken"):
        check_taken({"a": (0, 2)}, [result])


def test_settings_of_earlier_versions_are_read_past(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text("[pipeline]\nlocal_bytes_max = 0\n")
    assert config.load(tmp_path)["pipeline.batch_events_max"] == 2_000_000
