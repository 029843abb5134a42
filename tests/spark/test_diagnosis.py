"""Why batches are slow or late: each rule by crafted figures, and each cause provoked for real.

What is provoked is judged by what the batches recorded, never by a clock of the test's own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps import app_of, catch_up
from ledgers import bill, new_home, open_job, waiting_batch
from opentab.api.answers import Overview
from opentab.billing import task
from opentab.billing.bill import Job
from opentab.billing.garbage import GarbageWatch, executors_url, spent_by, worst_between
from opentab.billing.run import Pipeline, Progress
from opentab.core.records import BatchRecord, PartitionState, TaskTimes
from opentab.ledger import journal as journal_module
from opentab.ledger.diagnosis import BATCHES, SMALL_FILES_MIN, Cause, Diagnosis, Name, diagnose
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.replica.presence import Presence, present, tell
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Collecting, Heartbeat, Work, read_heartbeat, write_heartbeat
from processes import wait_for
from product import event, opentab

SECOND_US = 1_000_000
NOW_US = 1_800_000_000 * SECOND_US
WORK = Work(master="local[4]", pause_ms=250.0, pause_min_ms=0.0, compact_files=64, small_files=40)
IN_ORDER = '[billing]\nout_of_orderness = "0s"\n'
BIG_LINES = 80_000
SKEW_FIX = (
    "raise pipeline.batch_events_max, so that a batch has more to share out; "
    "in a log directory append in smaller pieces, too: a segment is never divided"
)


# The rules, by crafted figures


@dataclass(frozen=True)
class Crafted:
    """A batch that takes 120 ms of four cores, half a second after the one before."""

    batch: int = 0
    run: str = "run"
    started_us: int = 0
    committed_us: int = 0
    steps_ms: dict[str, float] = field(default_factory=dict)
    times: TaskTimes | None = None
    input_bytes: int = 10_000_000


STEPS = {
    "waiting": 150.0, "tasks": 90.0, "reading": 2.0, "decoding": 20.0, "deduping": 5.0, "tallying": 3.0,
    "staging": 10.0, "planning": 15.0, "committing": 15.0,
}  # fmt: skip
TIMES = TaskTimes(4, 4, 38.0, 40.0, {"reading": 8.0, "decoding": 80.0, "tallying": 20.0, "staging": 40.0}, 0.5)


def batches(
    *, count: int = BATCHES + 1, every_ms: float = 500.0, times: TaskTimes = TIMES, run: str = "run", **steps: float
) -> list[Crafted]:
    """The last batches, up to now."""
    took_ms = (STEPS | steps)["tasks"]
    starts = [NOW_US - int((count - n) * every_ms * 1000) for n in range(count)]
    return [Crafted(n, run, at, at + int(took_ms * 1000), STEPS | steps, times) for n, at in enumerate(starts, start=1)]


def heartbeat(position: int = BATCHES + 1, unread: int = 0, **work: Any) -> Heartbeat:
    now = Heartbeat(NOW_US, "run", 1, True, position, unread == 0, NOW_US, unread)
    return msgspec.structs.replace(now, work=msgspec.structs.replace(WORK, **work))


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> BatchRecord:
    """A record with nothing in it that would hold the watermark back."""
    return bill(new_home(tmp_path_factory.mktemp("last") / "home"), event())


def found(batches: list[Crafted], last: BatchRecord, beat: Heartbeat | None = None, **more: Any) -> Diagnosis:
    diagnosis = diagnose(batches, last, beat or heartbeat(), **more)
    assert diagnosis is not None
    return diagnosis


def test_nothing_is_said_of_quick_batches(last: BatchRecord) -> None:
    diagnosis = found(batches(), last)
    assert diagnosis == Diagnosis(
        "nothing slows the batches down: a batch takes 120 ms, and 0 segments wait", False, []
    )


@pytest.mark.parametrize(
    ("slow", "work", "cause"),
    [
        pytest.param(
            batches(every_ms=5000, waiting=4800),
            {"pause_ms": 5000.0},
            Cause(
                Name.TRIGGER,
                "events wait 4.8 s for the next batch to start, which then takes 120 ms",
                "lower pipeline.batch_pause (now 5 s)",
                "pipeline.batch_pause",
            ),
            id="a long pause between the starts",
        ),
        pytest.param(
            batches(every_ms=3120, waiting=2900),
            {"pause_min_ms": 3000.0},
            Cause(
                Name.TRIGGER,
                "events wait 2.9 s for the next batch to start, which then takes 120 ms",
                "lower pipeline.batch_pause_min (now 3 s)",
                "pipeline.batch_pause_min",
            ),
            id="a long pause after each commit",
        ),
        pytest.param(
            batches(
                every_ms=2500,
                waiting=9000,
                tasks=2400,
                decoding=2000,
                times=TaskTimes(4, 4, 2200.0, 2300.0, {"decoding": 8400.0, "staging": 400.0}),
            ),
            {},
            Cause(
                Name.CORES,
                "the tasks keep all 4 cores busy for 88 % of their 2.4 s",
                "add cores: more of this machine's, a larger one, or a cluster; spark.master is now local[4]",
                "spark.master",
            ),
            id="all cores are busy",
        ),
        pytest.param(
            batches(every_ms=1610, waiting=1500, tasks=700, staging=600, committing=900),
            {},
            Cause(
                Name.LEDGER,
                "of the 1.6 s of a batch, staging files takes 600 ms and the commit 900 ms",
                "put ledger.uri on a faster disk, or in a bucket nearby",
                "ledger.uri",
            ),
            id="writing takes most of a batch",
        ),
        pytest.param(
            batches(every_ms=1800, waiting=1500, committing=900),
            {"small_files": 12_000, "compact_files": 50_000},
            Cause(
                Name.SMALL_FILES,
                "the journal has 12,000 small files, and a commit takes 900 ms",
                "lower pipeline.compact_files (now 50,000)",
                "pipeline.compact_files",
            ),
            id="the commit is slow, and there are many files",
        ),
        pytest.param(
            batches(every_ms=1800, waiting=1500, committing=900),
            {"small_files": 700},
            Cause(
                Name.SMALL_FILES,
                "the journal has 700 small files, and a commit takes 900 ms",
                "merging them does not keep up: raise pipeline.batch_pause (now 250 ms), for fewer batches",
                "pipeline.batch_pause",
            ),
            id="there are many files although they are merged soon",
        ),
        pytest.param(
            batches(
                every_ms=4300,
                waiting=5000,
                tasks=4200,
                times=TaskTimes(4, 4, 600.0, 4100.0, {"decoding": 5500.0, "staging": 400.0}),
            ),
            {},
            Cause(
                Name.SKEW,
                "the slowest task takes 4.1 s, the median task 600 ms",
                SKEW_FIX,
                "pipeline.batch_events_max",
            ),
            id="one task has most of the work",
        ),
        pytest.param(
            batches(
                every_ms=4300, waiting=5000, tasks=4200, times=TaskTimes(8, 1, 4100.0, 4100.0, {"decoding": 4100.0})
            ),
            {},
            Cause(
                Name.SKEW,
                "the batches have work for 1 of 8 cores, and a task takes 4.1 s",
                SKEW_FIX,
                "pipeline.batch_events_max",
            ),
            id="one task has all the work",
        ),
        pytest.param(
            batches(every_ms=120, waiting=2000),
            {"collecting": Collecting("the driver (127.0.0.1)", 0.31)},
            Cause(
                Name.GARBAGE,
                "Java's garbage collector took 31 % of the time of the driver (127.0.0.1) in the last minute",
                "raise spark.driver.memory",
                "spark.driver.memory",
            ),
            id="the driver collects garbage",
        ),
        pytest.param(
            batches(every_ms=120, waiting=2000),
            {"collecting": Collecting("executor 3 (10.0.0.7)", 0.5)},
            Cause(
                Name.GARBAGE,
                "Java's garbage collector took 50 % of the time of executor 3 (10.0.0.7) in the last minute",
                "raise spark.executor.memory",
                "spark.executor.memory",
            ),
            id="an executor collects garbage",
        ),
        pytest.param(
            batches(every_ms=120, waiting=2000, times=msgspec.structs.replace(TIMES, collecting_ms=TIMES.sum_ms / 4)),
            {},
            Cause(
                Name.GARBAGE,
                "Python's garbage collector takes 25 % of the tasks' time",
                "lower pipeline.batch_events_max, for smaller batches",
                "pipeline.batch_events_max",
            ),
            id="Python collects garbage",
        ),
    ],
)
def test_a_cause_of_slow_batches(slow: list[Crafted], work: dict[str, Any], cause: Cause, last: BatchRecord) -> None:
    diagnosis = found(slow, last, heartbeat(unread=3, **work))
    assert diagnosis.is_late
    assert diagnosis.causes == [cause]
    assert diagnosis.sentence.startswith("events are billed ")
    assert diagnosis.sentence.endswith(", and 3 segments wait")
    assert cause.setting is None or cause.setting in cause.fix
    # The same figures are no trouble where events are billed in time.
    assert found(slow, last, heartbeat(**work), late_ms=1e9).causes == []


def test_the_worst_comes_first(last: BatchRecord) -> None:
    slow = batches(every_ms=3000, waiting=2000, tasks=1100, staging=1000, committing=500)
    names = [cause.name for cause in found(slow, last, heartbeat(pause_ms=3000.0)).causes]
    assert names == [Name.LEDGER, Name.TRIGGER]
    slow = batches(every_ms=9000, waiting=8000, tasks=4100, staging=4000, committing=500)
    names = [cause.name for cause in found(slow, last, heartbeat(pause_ms=20_000.0)).causes]
    assert names == [Name.LEDGER, Name.TRIGGER]


def test_a_small_batch_has_nothing_to_share_out(last: BatchRecord) -> None:
    one_task = TaskTimes(8, 1, 4100.0, 4100.0, {"decoding": 4100.0})
    slow = [replace(one, input_bytes=100) for one in batches(every_ms=4300, waiting=5000, tasks=4200, times=one_task)]
    assert found(slow, last).causes == []


def test_what_no_cause_explains_names_the_largest_part(last: BatchRecord) -> None:
    diagnosis = found(batches(waiting=2000, tasks=900), last, heartbeat(unread=1))
    assert diagnosis == Diagnosis(
        "events are billed 2.9 s after they arrived, and 1 segment waits; none of the causes known here explains it, "
        "the largest part of a batch is Spark's work around the tasks, 860 ms",
        True,
        [],
    )


def test_batches_of_long_ago_and_the_first_of_a_run_say_nothing(last: BatchRecord) -> None:
    none = "no batch to judge in the last 10 min, and 0 segments wait"
    slow = batches(every_ms=5000, waiting=4800)
    old = [replace(one, committed_us=one.committed_us - 3600 * SECOND_US) for one in slow]
    assert found(old, last, heartbeat(pause_ms=5000.0)) == Diagnosis(none, False, [])
    assert found(slow[-1:], last).sentence == none
    first_of_a_run = [batches(run="before")[0], replace(batches(waiting=60_000)[1], run="now")]
    assert found(first_of_a_run, last).sentence == none
    assert diagnose([], None, None) is None


def test_a_pipeline_of_an_earlier_version_is_judged_by_its_times_alone(last: BatchRecord) -> None:
    slow = [replace(one, times=None) for one in batches(every_ms=5000, waiting=4800)]
    beat = msgspec.structs.replace(heartbeat(), work=None)
    assert found(slow, last, beat).causes == []
    assert found(slow, last, beat).is_late
    assert [one.name for one in found(slow, last, heartbeat(pause_ms=5000.0)).causes] == [Name.TRIGGER]


def partitions(**latest_and_arrived: tuple[float, float]) -> dict[str, PartitionState]:
    """The newest event and the last arrival of each, in seconds before now."""
    return {
        name: PartitionState(1, NOW_US - int(latest * SECOND_US), NOW_US - int(arrived * SECOND_US), idle=False)
        for name, (latest, arrived) in latest_and_arrived.items()
    }


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        (partitions(north=(5, 1), south=(300, 290)), Cause(
            Name.IDLE,
            "nothing arrived in partition south for 4.8 min, and it holds the watermark back by 4.9 min",
            "mend its producer, or lower pipeline.idle_after (now 10 min)",
            "pipeline.idle_after",
        )),
        (partitions(north=(5, 1), south=(10_800, 2)), Cause(
            Name.LAGGING,
            "the events of partition south are 3 h behind, and it holds the watermark back",
            "mend its producer: it sends events late",
            None,
        )),
        (partitions(east=(290, 280), north=(5, 1), south=(300, 290)), Cause(
            Name.IDLE,
            "nothing arrived in partition south for 4.8 min, and it holds the watermark back by 4.9 min",
            "mend its producer, or lower pipeline.idle_after (now 10 min)",
            "pipeline.idle_after",
        )),
        (partitions(east=(-86_400, 1), north=(5, 1), south=(10, 1)), None),
        (partitions(north=(5, 1), south=(40, 30)), None),
        (partitions(north=(5, 1)), None),
        ({**partitions(north=(5, 1)), "south": PartitionState(1, NOW_US - 10**12, NOW_US - 10**12, idle=True)}, None),
    ],
)  # fmt: skip
def test_a_partition_that_holds_the_watermark_back(
    states: dict[str, PartitionState], cause: Cause | None, last: BatchRecord
) -> None:
    diagnosis = found(batches(), msgspec.structs.replace(last, partitions=states))
    assert diagnosis.causes == ([] if cause is None else [cause])
    assert not diagnosis.is_late


@pytest.mark.parametrize(
    ("replica", "fact"),
    [
        (Presence("here:home", 100, NOW_US), None),
        (Presence("here:home", 96, NOW_US - SECOND_US), None),
        (Presence("here:home", 100, NOW_US - 60 * SECOND_US), None),
        (Presence("here:home", 40, NOW_US), "replica here:home is 60 batches behind, about 30 s"),
        (Presence("here:home", 99, NOW_US - 60 * SECOND_US), "replica here:home is 1 batch behind, and gave no sign of life for 60 s"),
    ],
)  # fmt: skip
def test_a_replica_that_falls_behind(replica: Presence, fact: str | None, last: BatchRecord) -> None:
    diagnosis = found(batches(), last, heartbeat(position=100), replicas=[replica])
    assert [cause.fact for cause in diagnosis.causes] == ([] if fact is None else [fact])
    assert {cause.name for cause in diagnosis.causes} <= {Name.REPLICA}


def test_the_process_with_the_largest_share_of_garbage_collection_is_named() -> None:
    def said(*each: tuple[str, int, int]) -> Any:
        return spent_by(
            [{"id": i, "hostPort": f"10.0.0.{i}:7", "totalGCTime": gc, "totalDuration": all_} for i, gc, all_ in each]
        )

    before = said(("1", 100, 10_000), ("2", 100, 10_000), ("3", 0, 5_000))
    after = said(("1", 200, 20_000), ("2", 3_100, 20_000), ("3", 90, 5_100), ("4", 900, 1_000))
    assert worst_between(before, after) == Collecting("executor 2 (10.0.0.2)", 0.3)
    assert worst_between(after, after) is None


# The causes, provoked


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def diagnosis_of(home: Home, **more: Any) -> Diagnosis:
    """What a home says of itself; by default every batch is too late."""
    records, beat = journal_of(home).batches(), read_heartbeat(home.ledger)
    now_us = beat.at_us if beat else 0
    diagnosis = diagnose(records, records[-1], beat, present(home.ledger, now_us=now_us), **{"late_ms": 0.0, **more})
    assert diagnosis is not None
    return diagnosis


def first_cause(home: Home) -> Cause:
    diagnosis = diagnosis_of(home)
    assert diagnosis.causes, [(diagnosis.sentence, record) for record in journal_of(home).batches()]
    return diagnosis.causes[0]


def big() -> bytes:
    """A segment that keeps a task busy for a second: an escaped letter makes each line be read on its own."""
    line = event().replace("emma", r"\u0065mma")
    return f"{line}\n".encode() * BIG_LINES


def run_once(home: Home, spark: Any) -> None:
    Pipeline(home, once=True, spark=spark).run()


@pytest.fixture
def producer(tmp_path: Path) -> Callable[..., Producer]:
    return lambda home, partition="default", **more: Producer(DirectoryLog(home.log_path), partition, **more)


def test_provoked_skew(tmp_path: Path, spark: Any, producer: Callable[..., Producer]) -> None:
    large, cores = big(), spark.sparkContext.defaultParallelism
    home = new_home(tmp_path / "home", f"[pipeline]\nbatch_events_max = {len(large) // 48 + 100 * cores}\n")
    for _ in range(4):
        for body in (large, *[event().encode()] * (cores - 1)):
            producer(home).append(body)
    run_once(home, spark)
    assert [record.event_count for record in journal_of(home).batches()] == [BIG_LINES + cores - 1] * 4
    assert Name.SKEW in {cause.name for cause in diagnosis_of(home).causes}, journal_of(home).batches()


def test_provoked_too_few_cores(tmp_path: Path, spark: Any, producer: Callable[..., Producer]) -> None:
    share, cores = big(), spark.sparkContext.defaultParallelism
    home = new_home(tmp_path / "home", f"[pipeline]\nbatch_events_max = {len(share) * cores // 48 + 100}\n")
    for _ in range(3 * cores):
        producer(home).append(share)
    run_once(home, spark)
    times = [record.times for record in journal_of(home).batches()]
    assert [(one.cores, one.count) for one in times if one is not None] == [(cores, cores)] * 3
    assert first_cause(home).name == Name.CORES, journal_of(home).batches()


def test_provoked_slow_ledger(
    tmp_path: Path, spark: Any, producer: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home(tmp_path / "home", "[pipeline]\nbatch_events_max = 1\n")
    for _ in range(4):
        producer(home).append(event().encode())
    write_actions = journal_module.write_actions

    def on_a_slow_disk(*args: Any, **options: Any) -> None:
        time.sleep(1)
        write_actions(*args, **options)

    monkeypatch.setattr(journal_module, "write_actions", on_a_slow_disk)
    run_once(home, spark)
    assert first_cause(home).name == Name.LEDGER


def test_provoked_too_many_small_files(
    tmp_path: Path, spark: Any, producer: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough of them for a slow commit take minutes to make: a few hundred fewer are many here."""
    monkeypatch.setattr("opentab.ledger.diagnosis.SMALL_FILES_MIN", SMALL_FILES_MIN // 10)
    home = new_home(tmp_path / "home", "[pipeline]\nbatch_events_max = 1\ncompact_files = 50000\n")
    job = open_job(home, "run")
    for _ in range(30):
        bill_one(job, producer(home), event())
    producer(home).append(event().encode())
    run_once(home, spark)
    counted = read_heartbeat(home.ledger).work.small_files  # type: ignore[union-attr]
    assert counted >= 60, "an entry and a batch for each"
    cause = next(cause for cause in diagnosis_of(home).causes if cause.name == Name.SMALL_FILES)
    assert cause.fact.startswith(f"the journal has {counted:,} small files, and a commit takes ")
    assert cause.fix == "lower pipeline.compact_files (now 50,000)"


def test_provoked_garbage_collection_of_java(tmp_path: Path, spark: Any, producer: Callable[..., Producer]) -> None:
    home = new_home(tmp_path / "home", "[pipeline]\nbatch_events_max = 1\n")
    for _ in range(3):
        producer(home).append(event().encode())
    run_once(home, spark)
    context = spark.sparkContext
    watch = GarbageWatch(executors_url(context.uiWebUrl, context.applicationId), is_wanted=lambda: True)
    watch.start()

    def collects() -> bool:
        spark.range(0, 10, 1, 1).selectExpr("reflect('java.lang.System', 'gc')").collect()
        return watch.worst is not None and watch.worst.share >= 0.1

    try:
        wait_for(collects, "Spark had told of it")
    finally:
        watch.stop()
    beat = read_heartbeat(home.ledger)
    assert beat is not None and beat.work is not None
    work = msgspec.structs.replace(beat.work, collecting=watch.worst)
    write_heartbeat(home.ledger, msgspec.structs.replace(beat, work=work))
    cause = next(cause for cause in diagnosis_of(home).causes if cause.name == Name.GARBAGE)
    assert cause.fact.startswith("Java's garbage collector took ")
    assert cause.setting == "spark.driver.memory"


def test_provoked_waiting_for_the_trigger(tmp_path: Path, spark: Any, producer: Callable[..., Producer]) -> None:
    home = new_home(tmp_path / "home", f'{IN_ORDER}[pipeline]\nbatch_pause = "2s"\n')
    log = producer(home)
    log.append(event().encode())
    pipeline = Pipeline(home, spark=spark)
    seen: set[int] = set()

    def watch(progress: Progress) -> None:
        if progress.record is not None and progress.record.batch not in seen:
            seen.add(progress.record.batch)
            log.append(event().encode())  # right behind the commit: it has the whole pause to wait
            if len(seen) == 4:
                pipeline.stop()

    pipeline.watch = watch
    pipeline.run()
    diagnosis = diagnosis_of(home, late_ms=1_000.0)
    assert (diagnosis.is_late, diagnosis.causes[0].name) == (True, Name.TRIGGER)
    assert diagnosis.causes[0].fix == "lower pipeline.batch_pause (now 2 s)"
    # The doctor says so, and nothing is missing because of it; and so does the server.
    said = opentab("doctor", home=home).stdout
    assert "SLOW     delays    waiting for the trigger: events wait " in said
    assert "                   lower pipeline.batch_pause (now 2 s)\n" in said
    with app_of(home) as app:
        answer = app.get("/v1/overview").json()
        assert answer["diagnosis"] == msgspec.to_builtins(diagnosis)
        msgspec.convert(answer, type=Overview)


def test_provoked_garbage_collection_of_python(
    tmp_path: Path, producer: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home(tmp_path / "home")
    job = open_job(home, "run")
    decode = task.decode

    def with_much_garbage(*args: Any, **options: Any) -> Any:
        gc.collect()
        return decode(*args, **options)

    monkeypatch.setattr(task, "decode", with_much_garbage)
    for _ in range(3):
        bill_one(job, producer(home), event())
    beats(home)
    assert Name.GARBAGE in {cause.name for cause in diagnosis_of(home).causes}, job.last


def bill_one(job: Job, producer: Producer, line: str) -> None:
    """Bill one event in this process."""
    producer.append(line.encode())
    batch = waiting_batch(job)
    assert batch is not None
    job.bill(batch)


def beats(home: Home, *, later: float = 0.0) -> Heartbeat:
    """Say what a pipeline says that stands where the journal is."""
    last = journal_of(home).batches()[-1]
    at_us = last.committed_us + int(later * SECOND_US)
    beat = Heartbeat(at_us, "run", 1, True, last.batch, True, at_us, 0, last.batch, work=WORK)
    write_heartbeat(home.ledger, beat)
    return beat


def test_provoked_idle_and_lagging_partition(tmp_path: Path, producer: Callable[..., Producer]) -> None:
    home = new_home(tmp_path / "home", IN_ORDER)
    now = datetime.now(UTC)
    job = open_job(home, "run")

    def arrives(partition: str, minutes_ago: int, at: str) -> None:
        clock = now - timedelta(minutes=minutes_ago)
        bill_one(job, producer(home, partition, clock=lambda: clock), event(time=at))
        beats(home)

    arrives("south", 9, "2026-01-15T12:00:00Z")
    arrives("north", 5, "2026-01-15T12:05:00Z")
    (cause,) = diagnosis_of(home, late_ms=1e12).causes
    assert cause.name == Name.IDLE
    assert cause.fact == "nothing arrived in partition south for 4 min, and it holds the watermark back by 5 min"
    arrives("north", 4, "2026-01-15T18:00:00Z")
    arrives("south", 4, "2026-01-15T12:01:00Z")
    (cause,) = diagnosis_of(home, late_ms=1e12).causes
    assert cause.name == Name.LAGGING
    assert cause.fact == "the events of partition south are 6 h behind, and it holds the watermark back"


def test_provoked_replica_behind(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event())
    catch_up(home)
    stopped = beats(home)
    tell(home.ledger, home.path, 1, now_us=stopped.at_us)
    for _ in range(2):
        bill(home, event())
    beats(home, later=30)
    (cause,) = diagnosis_of(home, late_ms=1e12).causes
    assert cause.name == Name.REPLICA
    assert "is 2 batches behind, and gave no sign of life for 30" in cause.fact
    assert "SLOW     delays    replica behind: replica " in opentab("doctor", home=home).stdout
