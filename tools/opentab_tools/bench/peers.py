"""opentab bench peers: opentab and what people would use instead, over the same events in the same Kafka topic.

All of them take turns, so that drift of the machine meets each; a ratio is taken within a turn, between neighbours
where that can be. What opentab billed is audited after every run, and so is the replica beside it. The total of a peer
is held against what the audit found right, Flink's over its warm-up; a wrong one ends the bench.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opentab.core.errors import MachineError, OpentabError
from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.simulator.expected import read_bills
from opentab_tools.bench.audited import audit, audit_replica
from opentab_tools.bench.end_to_end import EndToEnd, measure_end_to_end
from opentab_tools.bench.figures import MEBIBYTE, Figure, Say, at_least, plain, write_json
from opentab_tools.bench.month_log import write_month
from opentab_tools.measuring.disk_usage import file_bytes
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.measuring.measured_run import TOTAL, MeasuredRun, measure_home
from opentab_tools.peers.flink import State, install_flink, measure_flink
from opentab_tools.peers.outcome import PeerRun
from opentab_tools.peers.spark import Way, measure_spark
from opentab_tools.servers.broker import Broker
from opentab_tools.servers.redis_server import find_redis

CORES = 2
WARM_UP_EVENTS, WARM_UP_CUSTOMERS = 4_000_000, 100  # for Flink's JVM: as many as our two batches of warm-up have
WARM_UP_TOPIC = "warm-up"

COMMIT, COMMIT_ONCE = "opentab, to commit", "opentab, to commit, dedupe on"
END, END_ONCE = "opentab, end to end", "opentab, end to end, dedupe on"
READING = "Spark, reading only"
ROCKSDB, HEAP = "Spark's aggregation, RocksDB state", "Spark's aggregation, heap state"
REDIS = "Spark to Redis"
FLINK_HEAP, FLINK_ROCKSDB = "Flink SQL, heap state", "Flink SQL, RocksDB state"
SPARK_WAYS: dict[str, Way] = {READING: "reading", ROCKSDB: "rocksdb", HEAP: "heap", REDIS: "redis"}
FLINK_STATES: dict[str, State] = {FLINK_HEAP: "heap", FLINK_ROCKSDB: "rocksdb"}
OURS = (COMMIT, COMMIT_ONCE, END, END_ONCE)
# Whoever is compared comes soon behind the other; what takes most of the memory comes last.
ALL = (READING, COMMIT, COMMIT_ONCE, END_ONCE, END, FLINK_HEAP, FLINK_ROCKSDB, REDIS, ROCKSDB, HEAP)
QUICK = (READING, COMMIT, COMMIT_ONCE, END)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with a month of events, and the home that wrote it."""

    name: str
    home: Home
    customers: int
    event_count: int
    warm_up_micros: int  # what the smaller one comes to
    batch_events: int  # in a batch of ours, and in one of Spark's


@dataclass(slots=True)
class Turn:
    """What all contenders did with a topic, one after the other."""

    customers: int
    rates: dict[str, float] = field(default_factory=dict)  # events/s behind the warm-up
    runs: dict[str, MeasuredRun] = field(default_factory=dict)
    peers: dict[str, PeerRun] = field(default_factory=dict)
    folded: dict[str, EndToEnd] = field(default_factory=dict)
    ledger_bytes: dict[str, int] = field(default_factory=dict)
    sum_micros: int | None = None  # as the audit found it


def bench_peers(
    *, events: int, sizes: Sequence[int], repeats: int, contenders: Sequence[str], json_path: Path | None,
    work_dir: Path, say: Say, batch_events: int | None = None,
) -> list[Figure]:  # fmt: skip
    """Measure all contenders over topics of so many customers each; write the figures where asked to.

    A batch, ours and Spark's, takes so many events at most; as many as it does by itself where nothing is said.

    1. a topic for each number of customers, 2. the contenders in turn over each, as often as wanted, 3. write JSON
    """
    machine = describe_machine()
    contenders, skipped = _present(contenders, say)
    turns: list[Turn] = []
    with Broker(work_dir / "broker") as broker:
        sizes = list(dict.fromkeys(min(size, events) for size in sizes))
        warm_up_micros = _fill_warm_up(broker, work_dir / "source", min(*sizes, WARM_UP_CUSTOMERS), events)
        topics = [_fill(broker, work_dir / "source", size, events, batch_events, warm_up_micros, say) for size in sizes]
        for repeat in range(1, repeats + 1):
            for topic in topics:
                say(f"{topic.customers:,} customers, turn {repeat} of {repeats}")
                broker.read_files(topic.name)  # so that no run finds them on the disk and the next one in memory
                turns.append(_turn(broker, topic, contenders, work_dir, say))
    for name in ("broker", "source"):
        shutil.rmtree(work_dir / name)
    figures = peers_figures(turns)
    machine["settings"] = _settings(turns, work_dir / "peer")
    for name, settings in machine["settings"].items():
        say(f"{name} was set up so: {', '.join(f'{key}={value}' for key, value in settings.items())}")
    machine["skipped"] = skipped
    machine["load_before"] = [run.load_before for turn in turns for run in turn.runs.values()]
    write_json(json_path, machine, figures)
    return figures


def _present(contenders: Sequence[str], say: Say) -> tuple[list[str], list[str]]:
    """The contenders that can be had on this machine, and of the others why not."""
    missing: dict[str, MachineError] = {}
    for names, find in ((tuple(FLINK_STATES), install_flink), ((REDIS,), find_redis)):
        wanted = [name for name in contenders if name in names]
        if not wanted:
            continue
        say(f"looking for what these need: {', '.join(wanted)}")
        try:
            find()
        except MachineError as error:
            say(f"skipped: {', '.join(wanted)}: {error}")
            missing |= dict.fromkeys(wanted, error)
    return [name for name in contenders if name not in missing], [f"{name}: {error}" for name, error in missing.items()]


def _fill_warm_up(broker: Broker, path: Path, customers: int, events: int) -> int:
    """Write a topic of few customers for warm-ups; what it comes to, in micros."""
    home = _home(path / WARM_UP_TOPIC, broker, WARM_UP_TOPIC, dedupe="off")
    each = min(events, WARM_UP_EVENTS) // customers
    write_month(home, customers=customers, events_per_customer=each, id_share=1.0)
    return sum(read_bills(home.expected_path).values())


def _fill(
    broker: Broker, path: Path, customers: int, events: int, batch_events: int | None, warm_up_micros: int, say: Say
) -> Topic:
    """Write a month to a topic."""
    say(f"writing about {events:,} events of {customers:,} customers to a topic")
    name = f"events-{customers}"
    home = _home(path / name, broker, name, dedupe="off", batch_events=batch_events)
    outcome = write_month(home, customers=customers, events_per_customer=events // customers, id_share=1.0)
    batch_events = home["pipeline.batch_events_max"]
    return Topic(name, home, customers, outcome.event_count_planned, warm_up_micros, batch_events)


def _home(path: Path, broker: Broker, topic: str, *, dedupe: str, batch_events: int | None = None) -> Home:
    path.mkdir(parents=True)
    text = f'[log]\nuri = "kafka://{broker.address}/{topic}"\n[billing]\ndedupe_window = "{dedupe}"\n'
    text += f"[kafka]\npartitions = {CORES}\n"
    if batch_events is not None:
        text += f"[pipeline]\nbatch_events_max = {batch_events}\n"
    (path / config.FILE_NAME).write_text(text, encoding="utf-8")
    return config.load(path)


def _turn(broker: Broker, topic: Topic, contenders: Sequence[str], work_dir: Path, say: Say) -> Turn:
    turn = Turn(topic.customers)
    for name in contenders:
        if name in OURS:
            _measure_ours(turn, name, broker, topic, work_dir / "run")
        else:
            _measure_peer(turn, name, broker, topic, work_dir / "peer")
        say(f"  {name}: {turn.rates[name]:,.0f} events/s")
    for name, peer in turn.peers.items():
        right = topic.warm_up_micros if name in FLINK_STATES else turn.sum_micros
        if name != READING and right is not None and peer.sum_micros != right:
            raise OpentabError(f"{name} came to {peer.sum_micros:,} micros, not {right:,}")
    return turn


def _measure_ours(turn: Turn, name: str, broker: Broker, topic: Topic, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    dedupe = "unbounded" if name in (COMMIT_ONCE, END_ONCE) else "off"
    home = _home(path, broker, topic.name, dedupe=dedupe, batch_events=topic.batch_events)
    if name in (END, END_ONCE):
        folded = measure_end_to_end(home)
        turn.folded[name] = folded
        run, rate = folded.run, folded.warm_events_per_second
    else:
        run = measure_home(home)
        rate = run.warm_events_per_second or run.events_per_second
    turn.runs[name], turn.rates[name] = run, rate
    turn.sum_micros = audited(home, topic)
    if name in turn.folded:
        audit_replica(home, expected_path=topic.home.expected_path)
    turn.ledger_bytes[name] = file_bytes(home.ledger.path)
    shutil.rmtree(path)


def audited(home: Home, topic: Topic) -> int:
    """The total of a home in micros, once the audit agrees with it and with the bills that were planned."""
    audit(home, expected_path=topic.home.expected_path)
    journal = Journal.open(home.ledger, home.identity)
    records = journal.batches() if journal else []
    found = sum(record.event_count for record in records)
    if found != topic.event_count:
        raise OpentabError(f"the measured run billed {found:,} events of {topic.event_count:,}")
    return sum(int(record.sum_micros) for record in records)


def _measure_peer(turn: Turn, name: str, broker: Broker, topic: Topic, scratch: Path) -> None:
    address = broker.address
    if name in FLINK_STATES:
        peer = measure_flink(
            address=address, topic=topic.name, warm_topic=WARM_UP_TOPIC, state=FLINK_STATES[name], scratch=scratch
        )
    else:
        way = SPARK_WAYS[name]
        peer = measure_spark(way, address=address, topic=topic.name, batch_events=topic.batch_events, scratch=scratch)
    turn.peers[name], turn.rates[name] = peer, peer.events_per_second


def peers_figures(turns: Sequence[Turn]) -> list[Figure]:
    """What the turns come to: rates by the number of customers, then the ratios that there are goals for."""
    sizes = sorted({turn.customers for turn in turns})
    by_size = {size: [turn for turn in turns if turn.customers == size] for size in sizes}
    figures: list[Figure] = []
    for size, found in by_size.items():
        figures += _rates(size, found)
        figures += _weights(size, found)
    few, many = min(sizes), max(sizes)
    if few < many:
        for name, goal in ((COMMIT, 0.9), (END, 0.6)):
            figures += _over_sizes(name, by_size[many], by_size[few], goal)
        for name in (ROCKSDB, HEAP, REDIS, FLINK_HEAP, FLINK_ROCKSDB):
            figures += _over_sizes(name, by_size[many], by_size[few], None)
    for size, found in by_size.items():
        figures += _to(COMMIT, READING, size, found, 0.5)
        figures += _to(COMMIT_ONCE, COMMIT, size, found, 0.65, "dedupe on to off, to commit")
        figures += _to(END_ONCE, END, size, found, None, "dedupe on to off, end to end")
        figures += _to(END, FLINK_HEAP, size, found, 3.5 if size == many else 1.0 if size == few else None)
        figures += _to(END, FLINK_ROCKSDB, size, found, None)
        figures += _to(END, ROCKSDB, size, found, 2.5 if size == many else None)
        figures += _to(END, HEAP, size, found, None)
        figures += _to(END, REDIS, size, found, 3.0 if size == many else None)
    return figures


def _rates(size: int, turns: Sequence[Turn]) -> list[Figure]:
    figures = []
    for name in ALL:
        rates = [turn.rates[name] for turn in turns if name in turn.rates]
        if rates:
            figure = plain(f"{name}, {size:,} customers", rates, "events/s")
            figures.append(replace(figure, peer=None if name in OURS else name))
    for name in ALL:
        label = f"{name}, {size:,} customers"
        runs = [turn.runs[name] for turn in turns if name in turn.runs]
        if runs:
            whole = [turn.folded.get(name, turn.runs[name]).events_per_second for turn in turns if name in turn.runs]
            figures.append(plain(f"{label}, from the start", whole, "events/s"))
            figures.append(plain(f"{label}, commits", [len(run.batches) for run in runs], "batches"))
        peers = [turn.peers[name] for turn in turns if name in turn.peers]
        if peers and name != READING:
            checkpoints = plain(f"{label}, checkpoints", [peer.checkpoints for peer in peers], "checkpoints")
            figures.append(replace(checkpoints, peer=name))
    return figures


def _weights(size: int, turns: Sequence[Turn]) -> list[Figure]:
    """Peak memory, and what the state weighs."""
    figures = []
    for name in ALL:
        sizes = [turn.runs[name].memory_bytes_max.get(TOTAL, 0) for turn in turns if name in turn.runs]
        sizes += [turn.peers[name].memory_bytes_max for turn in turns if name in turn.peers]
        if sizes:
            values = [value / MEBIBYTE for value in sizes]
            figure = plain(f"peak memory, {name}, {size:,} customers", values, "MiB")
            figures.append(replace(figure, peer=None if name in OURS else name))
    for name in (COMMIT, COMMIT_ONCE):
        weights = [turn.ledger_bytes[name] / turn.runs[name].event_count for turn in turns if name in turn.ledger_bytes]
        if weights:
            label = f"ledger, {name}, {size:,} customers"
            figures.append(plain(label, [weight * 1e6 / MEBIBYTE for weight in weights], "MiB a million events"))
    folded = [turn.folded[END].replica_bytes / size for turn in turns if END in turn.folded]
    if folded:
        figures.append(plain(f"replica, {size:,} customers", folded, "bytes a customer"))
    for name in (ROCKSDB, HEAP, REDIS, FLINK_HEAP, FLINK_ROCKSDB):
        states = [turn.peers[name].state_bytes / size for turn in turns if name in turn.peers]
        if states:
            figures.append(replace(plain(f"state, {name}, {size:,} customers", states, "bytes a customer"), peer=name))
    return figures


def _over_sizes(name: str, many: Sequence[Turn], few: Sequence[Turn], goal: float | None) -> list[Figure]:
    """A contender's rate with many customers to its rate with few, turn by turn."""
    pairs = [
        (m.rates[name], f.rates[name])
        for m, f in zip(many, few, strict=True)
        if name in m.rates.keys() & f.rates.keys()
    ]
    label = f"{name}, {many[0].customers:,} to {few[0].customers:,} customers"
    return _ratio(label, pairs, goal, None if name in OURS else name)


def _to(
    name: str, other: str, size: int, turns: Sequence[Turn], goal: float | None, label: str | None = None
) -> list[Figure]:
    """One contender's rate to another's in the same turn."""
    pairs = [(turn.rates[name], turn.rates[other]) for turn in turns if name in turn.rates and other in turn.rates]
    peer = None if other in OURS else other
    return _ratio(f"{label or f'{name} to {other}'}, {size:,} customers", pairs, goal, peer)


def _ratio(label: str, pairs: Sequence[tuple[float, float]], goal: float | None, peer: str | None) -> list[Figure]:
    if not pairs:
        return []
    ratios = [one / other for one, other in pairs]
    figure = plain(label, ratios, "ratio") if goal is None else at_least(label, ratios, "ratio", goal)
    return [replace(figure, peer=peer)]


def _settings(turns: Sequence[Turn], scratch: Path) -> dict[str, dict[str, str]]:
    """How each peer was set up, and its version; where its files lay for the while is nobody's setting."""
    return {
        name: {"version": peer.version, **{key: v.replace(str(scratch), "…") for key, v in peer.settings.items()}}
        for turn in turns
        for name, peer in turn.peers.items()
    }
