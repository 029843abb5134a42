"""opentab bench reads: how fast a customer's total is read, beside Redis, idle and while the pipeline ingests.

A real server of a home with so many customers is read at random by wrk; Redis by redis-benchmark, with as many
keys and values as large as our answers. They take turns, so that drift of the machine meets both, and a ratio is
taken for each pair of neighbours. What reads cost the pipeline comes from `run --once` over one and the same log,
each time on a copy of the same home, with the same server beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from opentab.core.errors import OpentabError
from opentab.core.records import BatchRecord
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.simulator.command import Command, started, streams, wait_until
from opentab_tools.bench.audited import audit
from opentab_tools.bench.billed_home import bill_month, copy_home, journal_of
from opentab_tools.bench.figures import MEBIBYTE, Figure, Say, at_least, at_most, plain, write_json
from opentab_tools.bench.load_result import Load
from opentab_tools.bench.month_log import write_month
from opentab_tools.bench.redis_peer import RedisPeer, redis_peer
from opentab_tools.bench.wrk_load import script, wrk_load, wrk_run
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.servers.http_line import HttpLine
from opentab_tools.servers.required_tools import find_tools
from opentab_tools.servers.served_home import FOLLOWER, WORKER, Memory, ServedHome, served

WARM_UP_SECONDS = 2
PACED_PER_SECOND = 2_000
REDIS_TURN_SECONDS = 2.0  # beside a pipeline: so many short turns as fit in
POLL_SECONDS = 0.1
LOAD_SECONDS_MIN = 1.0  # before that wrk has nothing to say
RATIO_MIN = 0.15
P99_MS_MAX = 10.0

NO_READS = "no reads"
PACED_READS = f"about {PACED_PER_SECOND:,} reads/s"
REDIS_READS = "Redis GETs at full speed"

Memories = Sequence[tuple[str, Memory]]
# Reads for as long as it is told to; None: there were none.
Reads = Callable[[ServedHome, Callable[[], bool]], Load | None]


@dataclass(frozen=True, slots=True)
class IdleTurn:
    """A load of our own server, and Redis right behind it."""

    ours: Load
    redis: Load
    memory: Memories


@dataclass(frozen=True, slots=True)
class Ingest:
    """A run of the pipeline, and the reads beside it."""

    events_per_second: float
    load: Load | None
    bill: tuple[int, int] = (0, 0)  # how many events, and micros


@dataclass(frozen=True, slots=True)
class BusyRound:
    """The runs of one repeat, one behind the other; `full` by workers."""

    alone: Ingest
    paced: Ingest
    full: dict[int, Ingest]
    redis: Ingest


@dataclass(slots=True)
class MeasuredReads:
    """All that was measured, repeat by repeat."""

    idle: dict[int, list[IdleTurn]] = field(default_factory=dict)  # by workers
    busy: list[BusyRound] = field(default_factory=list)


def bench_reads(
    *,
    customers: int,
    events: int,
    seconds: int,
    repeats: int,
    workers: tuple[int, ...],
    json_path: Path | None,
    work_dir: Path,
    say: Say,
) -> list[Figure]:
    """Measure reads beside Redis, and what they cost the pipeline; write the figures where asked to.

    1. bill a month, 2. put a log behind it, 3. read in turns, idle, 4. read while copies of the home are ingested
    """
    find_tools("wrk", "redis-server", "redis-benchmark")
    machine = describe_machine()
    say(f"billing a month of {customers:,} customers")
    home = bill_month(work_dir / "home", customers=customers)
    say(f"writing about {events:,} events to be ingested later")
    write_month(home, customers=customers, events_per_customer=max(1, events // customers), seed=2)
    reader = Reader(customers, work_dir / "read.lua")
    with redis_peer(work_dir, keys=customers, value=_an_answer(home)) as redis:
        measured = MeasuredReads()
        for repeat in range(1, repeats + 1):
            for count in workers:
                turn = _idle_turn(home, count, reader, redis, seconds)
                measured.idle.setdefault(count, []).append(turn)
                say(f"idle, {repeat} of {repeats}, {_workers(count)}: {_said(turn.ours)}; Redis {_said(turn.redis)}")
        for repeat in range(1, repeats + 1):
            say(f"ingesting, {repeat} of {repeats}")
            measured.busy.append(_busy_round(home, work_dir / "copy", workers, reader, redis, say))
    check_bills(measured.busy)
    figures = reads_figures(measured)
    write_json(json_path, machine, figures)
    return figures


def reads_figures(measured: MeasuredReads) -> list[Figure]:
    """What the loads come to."""
    figures = []
    for count, turns in measured.idle.items():
        label = _workers(count)
        figures += _load_figures(f"reads, {label}", [turn.ours for turn in turns], p99_ms_max=P99_MS_MAX)
        ratios = [turn.ours.per_second / turn.redis.per_second for turn in turns]
        name = f"reads to Redis GET, {label}"
        ratio = at_least(name, ratios, "ratio", RATIO_MIN) if count == 1 else plain(name, ratios, "ratio")
        figures += _of_redis([ratio])
    figures += _of_redis(_load_figures("Redis GET", [turn.redis for turns in measured.idle.values() for turn in turns]))
    for count in measured.idle:
        full = [busy.full[count] for busy in measured.busy]
        redis = [busy.redis.load for busy in measured.busy]
        loads = [ingest.load for ingest in full]
        figures += _load_figures(f"reads while ingesting, {_workers(count)}", _given(loads))
        pairs = [(a.per_second, b.per_second) for a, b in zip(loads, redis, strict=True) if a and b]
        if pairs:
            ratios = [ours / peer for ours, peer in pairs]
            figures += _of_redis([plain(f"reads to Redis GET while ingesting, {_workers(count)}", ratios, "ratio")])
    redis_loads = _given([busy.redis.load for busy in measured.busy])
    figures += _of_redis(_load_figures("Redis GET while ingesting", redis_loads))
    figures += _cost_figures(measured.busy)
    for count, turns in measured.idle.items():
        figures += _memory_figures(_workers(count), [turn.memory for turn in turns])
    return figures


def check_bills(rounds: Sequence[BusyRound]) -> None:
    """Raise unless all runs came to the same: the log was the same, and one run of each round was audited."""
    bills = {ingest.bill for busy in rounds for _, ingest in named(busy)}
    if len(bills) > 1:
        raise OpentabError(f"runs over the same log billed differently: {sorted(bills)}")


def named(busy: BusyRound) -> Iterator[tuple[str, Ingest]]:
    """The runs of a round, and what was read beside each."""
    yield NO_READS, busy.alone
    yield PACED_READS, busy.paced
    for count, ingest in busy.full.items():
        yield _full_reads(count), ingest
    yield REDIS_READS, busy.redis


def ingest_rate(records: Sequence[BatchRecord]) -> float:
    """Events a second behind the first batch, which warms Spark's workers up; of that batch if it is the only one."""
    began_us = records[0].committed_us if len(records) > 1 else records[0].started_us
    counted = records[1:] or records
    return sum(record.event_count for record in counted) * 1e6 / (counted[-1].committed_us - began_us)


@dataclass(slots=True)
class Reader:
    """Reads random customers; each load asks for others than the one before."""

    customers: int
    script_path: Path
    seed: int = 0

    def load(self, server: ServedHome, seconds: int) -> Load:
        """Read as fast as answers come."""
        return wrk_load(server.url, self.script_path, self._script(), seconds=seconds)

    def load_while(self, server: ServedHome, going: Callable[[], bool], *, per_second: int | None = None) -> Load:
        """Read for as long as something goes on."""
        with wrk_run(server.url, self.script_path, self._script(per_second)) as run:
            time.sleep(LOAD_SECONDS_MIN)
            while going():
                time.sleep(POLL_SECONDS)
            run.stop()
            return run.result()

    def _script(self, per_second: int | None = None) -> str:
        self.seed += 1
        return script(self.customers, seed=self.seed, per_second=per_second)


def _an_answer(home: Home) -> str:
    """What a read of a customer answers. The replica is made on the way, and stays."""
    with served(home, workers=1) as server, closing(HttpLine(server.port)) as line:
        _, answer = line.get("/v1/customers/c0000000")
        return msgspec.json.encode(answer).decode()


def _idle_turn(home: Home, workers: int, reader: Reader, redis: RedisPeer, seconds: int) -> IdleTurn:
    with served(home, workers=workers) as server:
        reader.load(server, WARM_UP_SECONDS)
        ours = reader.load(server, seconds)
        memory = server.memory()
    return IdleTurn(ours, redis.get(seconds), memory)


def _busy_round(
    home: Home, path: Path, workers: Sequence[int], reader: Reader, redis: RedisPeer, say: Say
) -> BusyRound:
    def paced(server: ServedHome, going: Callable[[], bool]) -> Load:
        return reader.load_while(server, going, per_second=PACED_PER_SECOND)

    def from_redis(_: ServedHome, going: Callable[[], bool]) -> Load | None:
        turns = []
        while going():
            turn = redis.get(REDIS_TURN_SECONDS)
            if going():  # else its end was idle
                turns.append(turn)
        return _middle(turns)

    def ingest(name: str, reads: Reads, *, workers: int = 1) -> Ingest:
        done = _ingest(home, path, workers=workers, reads=reads)
        read = f", {_said(done.load)}" if done.load else ""
        say(f"  {name}: {done.events_per_second:,.0f} events/s{read}")
        return done

    alone = ingest(NO_READS, _no_reads)
    audit(config.load(path))
    return BusyRound(
        alone=alone,
        paced=ingest(PACED_READS, paced),
        full={count: ingest(_full_reads(count), reader.load_while, workers=count) for count in workers},
        redis=ingest(REDIS_READS, from_redis),
    )


def _ingest(source: Home, path: Path, *, workers: int, reads: Reads) -> Ingest:
    """Run the pipeline over what a home's log still holds, on a copy, and read meanwhile."""
    home = copy_home(source, path)
    position = journal_of(home).position
    with served(home, workers=workers) as server, started(home, "run", "--once") as run:
        wait_until(
            lambda: streams(home, run) or not run.runs, "Spark was up", server.command, poll_seconds=POLL_SECONDS
        )
        load = reads(server, lambda: run.runs and not _caught_up(home, run))
        run.process.wait()
        run.check(ended_well=True)
        server.command.check()
    records = journal_of(home).batches(after=position)
    if not records:
        raise OpentabError("the measured run billed nothing")
    bill = sum(record.event_count for record in records), sum(int(record.sum_micros) for record in records)
    return Ingest(ingest_rate(records), load, bill)


def _no_reads(_: ServedHome, going: Callable[[], bool]) -> None:
    while going():
        time.sleep(POLL_SECONDS)


def _caught_up(home: Home, run: Command) -> bool:
    beat = read_heartbeat(home.ledger)
    return beat is not None and beat.pid == run.process.pid and beat.streaming and beat.caught_up


def _middle(loads: Sequence[Load]) -> Load | None:
    """The one with the median rate; None of none."""
    ordered = sorted(loads, key=lambda load: load.per_second)
    return ordered[len(ordered) // 2] if ordered else None


def _given(loads: Sequence[Load | None]) -> list[Load]:
    return [load for load in loads if load is not None]


def _load_figures(name: str, loads: Sequence[Load], *, p99_ms_max: float | None = None) -> list[Figure]:
    if not loads:
        return []
    p99_ms = [load.p99_ms for load in loads]
    p99_name = f"p99 of {name}"
    return [
        plain(name, [load.per_second for load in loads], "requests/s"),
        plain(f"p50 of {name}", [load.p50_ms for load in loads], "ms"),
        plain(p99_name, p99_ms, "ms") if p99_ms_max is None else at_most(p99_name, p99_ms, "ms", p99_ms_max),
    ]


def _of_redis(figures: Sequence[Figure]) -> list[Figure]:
    return [replace(figure, peer="Redis") for figure in figures]


def _cost_figures(busy: Sequence[BusyRound]) -> list[Figure]:
    """What reads cost the pipeline; each run against the one of its own round that had none."""
    if not busy:
        return []
    alone = [one.alone.events_per_second for one in busy]
    figures = [plain("ingest, no reads", alone, "events/s")]
    for runs in list(zip(*map(named, busy), strict=True))[1:]:
        name = runs[0][0]
        rates = [ingest.events_per_second for _, ingest in runs]
        figures.append(plain(f"ingest, {name}", rates, "events/s"))
        ratios = [rate / without for rate, without in zip(rates, alone, strict=True)]
        figures.append(plain(f"ingest to that without reads, {name}", ratios, "ratio"))
    paced = _given([one.paced.load for one in busy])
    figures.append(plain(f"reads that came of about {PACED_PER_SECOND:,}", [p.per_second for p in paced], "requests/s"))
    return figures


def _memory_figures(label: str, moments: Sequence[Memories]) -> list[Figure]:
    """Memory behind a load, the median over processes of a role and over repeats."""
    figures = []
    for role in (WORKER, FOLLOWER):
        held = [memory for moment in moments for name, memory in moment if name == role]
        for kind in ("rss", "pss", "uss"):
            sizes = [getattr(memory, f"{kind}_bytes") / MEBIBYTE for memory in held]
            figures.append(plain(f"{kind.upper()} of the {role}, {label}", sizes, "MiB"))
    return figures


def _full_reads(count: int) -> str:
    return f"reads at full speed, {_workers(count)}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _said(load: Load) -> str:
    return f"{load.per_second:,.0f} requests/s, p99 {load.p99_ms:.1f} ms"
