"""Processes of Spark's that hang without a word: the pipeline notices, tells, and bills on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledgers import new_home
from opentab.billing import run
from opentab.billing.run import Pipeline, Progress
from opentab.billing.session import warm_workers
from opentab.core.errors import TasksFailed
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from processes import planner_of, workers_of
from product import event

SETTINGS = '[pipeline]\nstall_timeout = "8s"\n'


def stop_workers() -> list[psutil.Process]:
    """Stop the Python workers of this process's Spark; its daemons go on, and fork others."""
    workers = workers_of(psutil.Process())
    for worker in workers:
        worker.suspend()
    return workers


@pytest.fixture
def stopped_workers(spark: Any) -> Iterator[list[psutil.Process]]:
    warm_workers(spark, "test")
    workers = stop_workers()
    assert workers
    yield workers
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.resume()


def events_in(home: Home) -> int:
    journal = Journal.open(home.ledger, home.identity)
    return sum(record.event_count for record in journal.batches()) if journal is not None else 0


def test_a_batch_whose_task_hangs_is_billed_again(
    tmp_path: Path, spark: Any, stopped_workers: list[psutil.Process]
) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    Producer(DirectoryLog(home.log_path)).append(event().encode())
    troubles: list[str] = []
    pipeline = Pipeline(home, spark=spark)

    def watch(progress: Progress) -> None:
        if progress.trouble is not None:
            troubles.append(progress.trouble.fact)
        if progress.batches:
            pipeline.stop()

    pipeline.watch = watch
    assert pipeline.run().events == 1
    assert any(fact.startswith("batch 1 has been running for") for fact in troubles), troubles
    assert events_in(home) == 1


def test_once_does_not_wait_for_a_task_that_hangs(
    tmp_path: Path, spark: Any, stopped_workers: list[psutil.Process]
) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    Producer(DirectoryLog(home.log_path)).append(event().encode())
    with pytest.raises(TasksFailed, match="batch 1 has been running for") as found:
        Pipeline(home, once=True, spark=spark).run()
    assert found.value.retry_helps and "pipeline.stall_timeout" in (found.value.hint or "")
    assert events_in(home) == 0


def test_a_pipeline_that_is_to_stop_does_not_wait_for_a_task_that_hangs(
    tmp_path: Path, spark: Any, stopped_workers: list[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "STOP_SECONDS_MAX", 1.0)
    home = new_home(tmp_path / "home", '[pipeline]\nstall_timeout = "1h"\n')
    Producer(DirectoryLog(home.log_path)).append(event().encode())
    pipeline = Pipeline(home, spark=spark)
    states: list[float] = []

    def look_then_stop(stream: Any, *_: Any) -> None:
        states.append(stream.billing_seconds)
        if stream.billing_seconds is not None:
            pipeline.stop()

    monkeypatch.setattr(pipeline._watchdog, "look", look_then_stop)
    assert pipeline.run().batches == 0
    assert states[-1] is not None
    assert Pipeline(home, once=True, spark=spark).run().events == 1


def test_the_process_that_plans_batches_hangs(tmp_path: Path, spark: Any) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    producer = Producer(DirectoryLog(home.log_path))
    producer.append(event().encode())
    troubles: list[str] = []
    planners: list[psutil.Process] = []
    pipeline = Pipeline(home, spark=spark)

    def watch(progress: Progress) -> None:
        if progress.batches == 1 and not planners:
            planners.append(planner_of(psutil.Process()))
            planners[0].suspend()
            producer.append(event().encode())
        beat = read_heartbeat(home.ledger)
        if progress.trouble is not None and beat is not None and beat.trouble is not None:
            troubles.append(beat.trouble)
        if progress.batches == 2:
            pipeline.stop()

    pipeline.watch = watch
    assert pipeline.run().events == 2
    planners[0].kill()
    assert any("has begun no batch for" in trouble and "1 segments wait" in trouble for trouble in troubles), troubles
    assert events_in(home) == 2
