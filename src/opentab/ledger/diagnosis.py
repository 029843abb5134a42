"""Why batches are slow or late, in words: the cause, the figure that says so, and the setting that helps.

Pure rules over what the last batches recorded, what the pipeline last said of itself, and where the replicas are. A
cause of slow batches is named only while events are billed late, and only if it costs a good part of a batch's time.
docs/operating.md has the causes as a table; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median, median_high
from typing import Protocol

import msgspec

from opentab.core.records import KINDS, BatchRecord, PartitionState, TaskTimes
from opentab.runtime.heartbeat import DRIVER, Heartbeat, Work
from opentab.runtime.terminal import plural

LATE_MS = 1_000.0  # from an event's arrival to its commit: the goal is a second
BATCHES = 20  # that are looked at: what was slow before them may be over
RECENT_US = 600_000_000  # batches that were long before the last sign of life say nothing of now
COST_SHARE_MIN = 0.1  # a cause that costs less of a batch's time is not worth a change
LEDGER_SHARE_MIN = 0.4  # of a batch; staging and committing take up to a quarter of a healthy one
BUSY_SHARE_MIN = 0.5  # of the cores' time; Spark's own work and the hand-over to Python are in the rest
SHARED_BYTES_MIN = 2**20  # of the log; a batch of less has nothing to share out among cores
SKEW_MIN = 3.0  # times the median: shares of the same size differ by less
COLLECTING_SHARE_MIN = 0.1  # from which on Spark's UI shows it in red
SMALL_FILES_MIN = 500  # a commit takes several times as long as over few files
SILENT_US_MIN = 60_000_000  # a partition may be quiet for a minute
LAGGING_US_MIN = 3_600_000_000  # event time differs between producers, but not by an hour
REPLICA_MS_MAX = 10_000.0  # from which on a replica is called stale

UNITS = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"))
TASK_STEPS = ("reading", "decoding", "deduping", "tallying", "staging")  # of the busiest task
DRIVER_STEPS = ("planning", "committing")
AROUND = "Spark's work around the tasks"
PARTS = {"planning": "Spark's planning", "committing": "the commit"}  # in words


class Name(StrEnum):
    """What can make batches slow or late."""

    TRIGGER = "waiting for the trigger"
    CORES = "too few cores"
    LEDGER = "slow ledger"
    SKEW = "skew"
    GARBAGE = "garbage collection"
    SMALL_FILES = "too many small files"
    REPLICA = "replica behind"
    IDLE = "idle partition"
    LAGGING = "lagging partition"


class Cause(msgspec.Struct, frozen=True):
    """Why batches are slow or late."""

    name: Name
    fact: str  # with the figure that says so
    fix: str
    setting: str | None  # that the fix names; None: no setting helps


class Diagnosis(msgspec.Struct, frozen=True):
    """How quick the batches are in one sentence, and what keeps them from being quicker, the worst first."""

    sentence: str
    is_late: bool  # whether events are billed later than they should
    causes: list[Cause]


class Batch(Protocol):
    """What is looked at of a batch: its record has it, and so has what a replica remembers of it."""

    @property
    def batch(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def started_us(self) -> int: ...
    @property
    def committed_us(self) -> int: ...
    @property
    def steps_ms(self) -> dict[str, float]: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def times(self) -> TaskTimes | None: ...


class Replica(Protocol):
    """A replica, as it last spoke."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def at_us(self) -> int: ...


@dataclass(frozen=True)
class Pace:
    """Where the time of the last batches went: medians, in milliseconds a batch."""

    late: float  # from the oldest event's arrival to the commit
    idle: float  # nothing was done although events waited
    busy: float  # planning, tasks, commit
    tasks: float
    steps: Mapping[str, float]
    interval: float  # between the starts of two batches
    input_bytes: float
    times: Sequence[TaskTimes]

    @property
    def staging(self) -> float:
        return self.steps["staging"]

    @property
    def committing(self) -> float:
        return self.steps["committing"]

    @property
    def largest(self) -> str:
        """The part of a batch that takes longest, in words."""
        inside = sum(self.steps[name] for name in TASK_STEPS)
        parts = {PARTS.get(name, name): ms for name, ms in self.steps.items()}
        parts[AROUND] = self.tasks - inside
        name = max(parts, key=lambda name: parts[name])
        return f"{name}, {_ms(parts[name])}"

    @property
    def cycle(self) -> float:
        """From the end of a batch to the end of the next one, while events wait."""
        return self.idle + self.busy

    def of_tasks(self, figure: Callable[[TaskTimes], float]) -> float:
        return median(map(figure, self.times)) if self.times else 0.0


Found = tuple[float, Cause]  # with what it costs a batch, in milliseconds
Rule = Callable[[Pace, Work], Found | None]


def diagnose(
    batches: Sequence[Batch], last: BatchRecord | None, beat: Heartbeat | None, replicas: Iterable[Replica] = (),
    *, late_ms: float = LATE_MS,
) -> Diagnosis | None:  # fmt: skip
    """Say why batches are slow or late; None where no pipeline ever ran.

    `batches` are the last ones in order, one more than BATCHES at best; `last` is the record of the last one.
    """
    if beat is None or last is None:
        return None
    pace = pace_of([one for one in batches if one.committed_us > beat.at_us - RECENT_US])
    is_late = pace is not None and pace.late > late_ms
    causes = []
    if pace is not None and is_late and beat.work is not None:
        found = [one for rule in RULES if (one := rule(pace, beat.work)) is not None]
        causes = [cause for _, cause in sorted(found, key=lambda one: -one[0])]
    sentence = _sentence(pace, beat, is_late=is_late, is_explained=bool(causes))
    causes += behind(replicas, beat, pace)
    causes += holding_back(last.partitions, idle_after_us=last.rules.idle_after_us)
    return Diagnosis(sentence, is_late, causes)


def pace_of(batches: Sequence[Batch]) -> Pace | None:
    """Where the time of the last batches went; None if there are none to judge.

    The first batch of a run is left out: what waited for it waited for Spark to start.
    """
    pairs = [(before, one) for before, one in pairwise(batches) if one.steps_ms and one.run == before.run]
    pairs = pairs[-BATCHES:]
    if not pairs:
        return None
    took = [(one.committed_us - one.started_us) / 1000 for _, one in pairs]
    waited = [one.steps_ms.get("waiting", 0.0) for _, one in pairs]
    steps = {name: median(one.steps_ms.get(name, 0.0) for _, one in pairs) for name in (*TASK_STEPS, *DRIVER_STEPS)}
    return Pace(
        late=median(map(sum, zip(waited, took, strict=True))) + steps["committing"],
        idle=median(_idle_ms(before, one) for before, one in pairs),
        busy=steps["planning"] + median(took) + steps["committing"],
        tasks=median(one.steps_ms.get("tasks", 0.0) for _, one in pairs),
        steps=steps,
        interval=median((one.started_us - before.started_us) / 1000 for before, one in pairs),
        input_bytes=median(one.input_bytes for _, one in pairs),
        times=[one.times for _, one in pairs if one.times is not None],
    )


def _idle_ms(before: Batch, one: Batch) -> float:
    """How long events waited although no batch was under way. A batch records the commit of the one before."""
    steps = one.steps_ms
    ended_us = before.committed_us + steps.get("committing", 0.0) * 1000
    arrived_us = one.started_us - steps.get("waiting", 0.0) * 1000
    return max(0.0, (one.started_us - max(ended_us, arrived_us)) / 1000 - steps.get("planning", 0.0))


def trigger(pace: Pace, work: Work) -> Found | None:
    """Nothing is done although events wait, and a pause is set."""
    setting, pause_ms, rest_ms = "pipeline.batch_pause", work.pause_ms, work.pause_ms - pace.busy
    if work.pause_min_ms > rest_ms:
        setting, pause_ms, rest_ms = "pipeline.batch_pause_min", work.pause_min_ms, work.pause_min_ms
    cost = min(pace.idle, rest_ms)
    if cost < COST_SHARE_MIN * pace.cycle or cost <= 0:
        return None
    fact = f"events wait {_ms(pace.idle)} for the next batch to start, which then takes {_ms(pace.busy)}"
    return cost, Cause(Name.TRIGGER, fact, f"lower {setting} (now {_ms(pause_ms)})", setting)


def cores(pace: Pace, work: Work) -> Found | None:
    """The tasks keep all cores busy with work of their own."""
    count = round(pace.of_tasks(lambda times: times.cores))
    worked = pace.of_tasks(lambda times: times.sum_ms - times.steps_ms.get("staging", 0.0))
    if not count or not pace.tasks or pace.tasks < COST_SHARE_MIN * pace.cycle or pace.input_bytes < SHARED_BYTES_MIN:
        return None
    share = worked / (count * pace.tasks)
    if share < BUSY_SHARE_MIN:
        return None
    kept = "the only core" if count == 1 else f"all {count} cores"
    fact = f"the tasks keep {kept} busy for {_percent(min(share, 1.0))} of their {_ms(pace.tasks)}"
    fix = f"add cores: more of this machine's, a larger one, or a cluster; spark.master is now {work.master}"
    return pace.tasks * share, Cause(Name.CORES, fact, fix, "spark.master")


def ledger(pace: Pace, work: Work) -> Found | None:
    """Writing takes most of a batch."""
    cost = pace.staging + pace.committing
    if cost < LEDGER_SHARE_MIN * pace.cycle or _has_many_files(pace, work):
        return None
    fact = (
        f"of the {_ms(pace.cycle)} of a batch, staging files takes {_ms(pace.staging)} "
        f"and the commit {_ms(pace.committing)}"
    )
    return cost, Cause(Name.LEDGER, fact, "put ledger.uri on a faster disk, or in a bucket nearby", "ledger.uri")


def small_files(pace: Pace, work: Work) -> Found | None:
    """The commit is slow because of all the files that the journal consists of."""
    if not _has_many_files(pace, work):
        return None
    fact = f"the journal has {work.small_files:,} small files, and a commit takes {_ms(pace.committing)}"
    setting = "pipeline.compact_files"
    fix = f"lower {setting} (now {work.compact_files:,})"
    if work.compact_files < SMALL_FILES_MIN // len(KINDS):
        setting = "pipeline.batch_pause"
        fix = f"merging them does not keep up: raise {setting} (now {_ms(work.pause_ms)}), for fewer batches"
    return pace.committing, Cause(Name.SMALL_FILES, fact, fix, setting)


def _has_many_files(pace: Pace, work: Work) -> bool:
    return (work.small_files or 0) >= SMALL_FILES_MIN and pace.committing >= COST_SHARE_MIN * pace.cycle


def skew(pace: Pace, _: Work) -> Found | None:
    """One task has much more to do than the others, or all of it."""
    longest = pace.of_tasks(lambda times: times.max_ms)
    cost = pace.of_tasks(lambda times: times.max_ms - times.sum_ms / max(1, times.cores))
    if cost < COST_SHARE_MIN * pace.cycle or cost <= 0 or pace.input_bytes < SHARED_BYTES_MIN:
        return None
    count, of = pace.of_tasks(lambda times: times.count), pace.of_tasks(lambda times: times.cores)
    typical = pace.of_tasks(lambda times: times.median_ms)
    setting = "pipeline.batch_events_max"
    if count < of:
        fact = f"the batches have work for {count:.0f} of {of:.0f} cores, and a task takes {_ms(longest)}"
    elif longest >= SKEW_MIN * typical:
        fact = f"the slowest task takes {_ms(longest)}, the median task {_ms(typical)}"
    else:
        return None
    fix = (
        f"raise {setting}, so that a batch has more to share out; "
        "in a log directory append in smaller pieces, too: a segment is never divided"
    )
    return cost, Cause(Name.SKEW, fact, fix, setting)


def garbage(pace: Pace, work: Work) -> Found | None:
    """Java's garbage collector, or Python's, takes a part of the tasks' time."""
    java = work.collecting
    python = pace.of_tasks(lambda times: times.collecting_ms / times.sum_ms if times.sum_ms else 0.0)
    if java is not None and java.share >= max(COLLECTING_SHARE_MIN, python):
        fact = f"Java's garbage collector took {_percent(java.share)} of the time of {java.where} in the last minute"
        setting = "spark.driver.memory" if java.where.startswith(DRIVER) else "spark.executor.memory"
        return java.share * pace.cycle, Cause(Name.GARBAGE, fact, f"raise {setting}", setting)
    if python >= COLLECTING_SHARE_MIN:
        fact = f"Python's garbage collector takes {_percent(python)} of the tasks' time"
        setting = "pipeline.batch_events_max"
        return python * pace.tasks, Cause(Name.GARBAGE, fact, f"lower {setting}, for smaller batches", setting)
    return None


RULES: Sequence[Rule] = (trigger, cores, ledger, small_files, skew, garbage)


def behind(replicas: Iterable[Replica], beat: Heartbeat, pace: Pace | None) -> Iterator[Cause]:
    """The replicas that show an old state."""
    for one in replicas:
        batches = beat.position - one.position
        silent_ms = (beat.at_us - one.at_us) / 1000
        lag_ms = (batches - 1) * pace.interval if pace is not None else 0.0
        if batches <= 0 or max(silent_ms, lag_ms) < REPLICA_MS_MAX:
            continue
        fact = f"replica {one.name} is {plural(batches, 'batch', 'batches')} behind"
        if silent_ms >= REPLICA_MS_MAX:
            yield Cause(
                Name.REPLICA,
                f"{fact}, and gave no sign of life for {_ms(silent_ms)}",
                "start opentab serve there",
                None,
            )
        else:
            fix = "give it more memory and a faster disk, or fewer months to keep: server.hot_periods"
            yield Cause(Name.REPLICA, f"{fact}, about {_ms(lag_ms)}", fix, "server.hot_periods")


def holding_back(partitions: Mapping[str, PartitionState], *, idle_after_us: int) -> Iterator[Cause]:
    """The partition that holds the watermark back, and so all closings, if the others are well ahead of it."""
    latest = {
        name: state.latest_us for name, state in partitions.items() if state.latest_us is not None and not state.idle
    }
    if len(latest) < 2:
        return
    name = min(latest, key=lambda name: latest[name])
    ahead_us = max(latest.values()) - latest[name]
    lag_us = median_high(latest.values()) - latest[name]  # one that is ahead of all says nothing of the others
    silent_us = max(state.arrived_us for state in partitions.values()) - partitions[name].arrived_us
    if silent_us >= SILENT_US_MIN and ahead_us >= SILENT_US_MIN:
        setting = "pipeline.idle_after"
        fact = (
            f"nothing arrived in partition {name} for {_ms(silent_us / 1000)}, "
            f"and it holds the watermark back by {_ms(ahead_us / 1000)}"
        )
        fix = f"mend its producer, or lower {setting} (now {_ms(idle_after_us / 1000)})"
        yield Cause(Name.IDLE, fact, fix, setting)
    elif lag_us >= LAGGING_US_MIN:
        fact = f"the events of partition {name} are {_ms(lag_us / 1000)} behind, and it holds the watermark back"
        yield Cause(Name.LAGGING, fact, "mend its producer: it sends events late", None)


def _sentence(pace: Pace | None, beat: Heartbeat, *, is_late: bool, is_explained: bool) -> str:
    waits = plural(beat.unread_segments, beat.unread_unit.removesuffix("s"), beat.unread_unit)
    verb = "waits" if beat.unread_segments == 1 else "wait"
    if pace is None:
        return f"no batch to judge in the last {_ms(RECENT_US / 1000)}, and {waits} {verb}"
    if not is_late:
        return f"nothing slows the batches down: a batch takes {_ms(pace.busy)}, and {waits} {verb}"
    late = f"events are billed {_ms(pace.late)} after they arrived, and {waits} {verb}"
    if is_explained:
        return late
    return f"{late}; none of the causes known here explains it, the largest part of a batch is {pace.largest}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(ms: float) -> str:
    """A duration for people."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    size, unit = next(((size, unit) for size, unit in UNITS if ms >= 2 * size), (1_000.0, "s"))
    number = ms / size
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}".replace(".0 ", " ")
