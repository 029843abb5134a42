"""The play: one fault after the other, with load on, each judged before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import quantiles

from opentab.core.errors import OpentabError
from opentab_tools.chaos.faults import FRESH_SECONDS, Fault, Scene, Strike
from opentab_tools.chaos.receiver import Mode
from opentab_tools.chaos.stage import TOPIC, Stage, Store, Tempo
from opentab_tools.chaos.verdict import Verdict, judge
from opentab_tools.chaos.watch import Flight, Read, Watch

CALM_READS_MIN = 20


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one fault."""

    fault: Fault
    exact: bool
    wrongs: tuple[str, ...]
    recovery_s: float | None  # the longest time from the end of the damage until answers were live again
    broken_s: float  # how long it was broken, in all
    reads_answered: float | None  # by either replica, from the blow until all was well
    replica_reads_answered: tuple[float, ...]  # by each of them
    staleness_s_max: float | None
    in_flight_max: int | None
    strikes: tuple[Strike, ...]
    notes: dict[str, int | float]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Calm:
    """How it was while nothing was broken and load was on."""

    staleness_s_p50: float | None
    staleness_s_p99: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report tells."""

    seed: int
    began_at: datetime
    seconds: float
    results: tuple[Result, ...]
    calm: Calm
    reads_answered: float
    began: float  # time.monotonic, which reads and strikes count in
    reads: tuple[Read, ...]
    flights: tuple[Flight, ...]
    broken: str | None  # why not all of it was played

    @property
    def exact(self) -> bool:
        """Whether every fault was played and ended exact."""
        return self.broken is None and all(result.exact for result in self.results)


def play(
    directory: Path,
    faults: Sequence[Fault],
    *,
    seed: int,
    tempo: Tempo,
    minutes: float,
    say: Callable[[str], None],
    tell: Callable[[Result], None],
) -> Run:
    """Play every fault once, and then any of them until the minutes are over. Each is told as it is judged.

    All play on one stage but those that want the ledger in a bucket: they get one of their own at the end.
    """
    began_at, began = datetime.now(UTC), time.monotonic()
    on_disk = [fault for fault in faults if fault.store is not Store.BUCKET]
    in_bucket = [fault for fault in faults if fault.store is Store.BUCKET]
    # A disk of its own is as good as another for those who do not break it.
    disk = max((fault.store for fault in on_disk), key=lambda store: store is Store.OWN_DISK, default=Store.DISK)
    acts = []
    for store, programme, soak in ((disk, on_disk, minutes), (Store.BUCKET, in_bucket, 0.0 if on_disk else minutes)):
        if programme:
            say(f"starting Kafka, ZooKeeper, Spark, the pipeline, two replicas, a receiver; the ledger on: {store}")
            stage = Stage(directory / store.replace(" ", "-"), seed=seed, tempo=tempo, store=store)
            acts.append(_play_on(stage, _programme(programme, seed=seed, minutes=soak), seed=seed, say=say, tell=tell))
    results = tuple(result for act in acts for result in act.results)
    reads = tuple(read for act in acts for read in act.reads)
    return Run(
        seed=seed,
        began_at=began_at,
        seconds=time.monotonic() - began,
        results=results,
        calm=_calm([read for act in acts for read in act.reads if read.at > act.live_since], results),
        reads_answered=_share(reads) or 0.0,
        began=began,
        reads=reads,
        flights=tuple(flight for act in acts for flight in act.flights),
        broken=next((act.broken for act in acts if act.broken), None),
    )


@dataclass(frozen=True, slots=True)
class _Act:
    """What was seen on one stage."""

    results: list[Result]
    live_since: float
    reads: list[Read]
    flights: list[Flight]
    broken: str | None  # why not all of the programme was played


def _play_on(
    stage: Stage, programme: Iterator[Fault], *, seed: int, say: Callable[[str], None], tell: Callable[[Result], None]
) -> _Act:
    results: list[Result] = []
    broken = None
    with stage, Watch(stage.replicas, stage.broker, TOPIC) as watch:
        stage.simulator.begin()
        stage.wait_until(
            lambda: watch.is_fresh(since=0, position=0, staleness_s_max=FRESH_SECONDS), "the first batch was read"
        )
        live_since = time.monotonic()
        for fault in programme:
            say(f"{fault.name}: {fault.what}")
            result = _play_one(fault, Scene(stage, watch, Random(f"{seed} {fault.name} {len(results)}")))
            results.append(result)
            tell(result)
            try:
                _make_whole(stage)
            except OpentabError as error:
                broken = f"the stage could not be mended behind {fault.name}: {error}"
                break
    return _Act(results, live_since, watch.reads, watch.flights, broken)


def _programme(faults: Sequence[Fault], *, seed: int, minutes: float) -> Iterator[Fault]:
    began, dice = time.monotonic(), Random(seed)
    yield from faults
    while time.monotonic() - began < minutes * 60:
        yield dice.choice(faults)


def _play_one(fault: Fault, scene: Scene) -> Result:
    """Load on, break, mend, wait until all is well, load off, judge."""
    stage, verdict = scene.stage, None
    began = time.monotonic()
    try:
        stage.simulator.begin(fault.shares)
        position = scene.watch.position
        stage.wait_until(
            lambda: scene.watch.is_fresh(since=began, position=position, staleness_s_max=FRESH_SECONDS),
            "load was flowing",
        )
        fault.play(scene)
        verdict = judge(stage)
        scene.wrongs += verdict.wrongs
    except OpentabError as error:
        scene.wrongs.append(error.fact)
    return _result(fault, scene, verdict, began)


def _make_whole(stage: Stage) -> None:
    """Start what does not run, so that the next fault can be played."""
    stage.simulator.check()
    stage.receiver.behave(Mode.WELL)
    stage.start()


def _result(fault: Fault, scene: Scene, verdict: Verdict | None, began: float) -> Result:
    strikes = scene.strikes
    first = strikes[0].struck if strikes else began
    last = strikes[-1].recovered if strikes else time.monotonic()
    reads = scene.watch.reads_between(first, last)
    stale = [read.staleness_s for read in reads if read.staleness_s is not None]
    return Result(
        fault=fault,
        exact=not scene.wrongs,
        wrongs=tuple(scene.wrongs),
        recovery_s=max((strike.recovery_s for strike in strikes), default=None),
        broken_s=sum(strike.mended - strike.struck for strike in strikes),
        reads_answered=_share(reads),
        replica_reads_answered=tuple(_share_of(number, reads) for number in range(len(scene.stage.replicas))),
        staleness_s_max=max(stale, default=None),
        in_flight_max=scene.watch.flight_max(first, last),
        strikes=tuple(strikes),
        notes=dict(scene.notes),
        verdict=verdict,
    )


def _share(reads: Sequence[Read]) -> float | None:
    return sum(read.answered for read in reads) / len(reads) if reads else None


def _share_of(replica: int, reads: Sequence[Read]) -> float:
    tries = [answered for read in reads for number, answered in read.tries if number == replica]
    return sum(tries) / len(tries) if tries else 0.0


def _calm(reads: Sequence[Read], results: Sequence[Result]) -> Calm:
    """Answers outside of all faults; between them there is load most of the time."""
    windows = [(strike.struck, strike.recovered) for result in results for strike in result.strikes]
    stale = [
        read.staleness_s
        for read in reads
        if read.staleness_s is not None and not any(first <= read.at <= last for first, last in windows)
    ]
    if len(stale) < CALM_READS_MIN:
        return Calm(None, None)
    cuts = quantiles(stale, n=100)
    return Calm(cuts[49], cuts[98])
