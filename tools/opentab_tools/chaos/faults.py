"""The faults: each breaks something for real, waits, and mends what does not mend itself."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from opentab.core.errors import OpentabError
from opentab.ledger.journal import Journal
from opentab.simulator.invoice_ticker import all_statements
from opentab_tools.chaos.receiver import Mode
from opentab_tools.chaos.simulator import USUAL, Shares
from opentab_tools.chaos.stage import Stage, Store, send
from opentab_tools.chaos.watch import Watch
from opentab_tools.servers.daemon import Daemon

FENCED = "another pipeline has taken over"
FENCED_SECONDS_MAX = 120.0
FRESH_SECONDS = 5.0  # an answer younger than this is a live one
FILL_BYTES = 1024 * 1024
OUTAGE_MONTHS = 2  # for how many simulated months there is no worker at all


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow: when it fell, when nothing was broken any more, and when all was well again."""

    struck: float  # time.monotonic, like the others
    mended: float
    recovered: float

    @property
    def recovery_s(self) -> float:
        return self.recovered - self.mended


@dataclass
class Scene:
    """What a fault plays with, and what it leaves to be judged."""

    stage: Stage
    watch: Watch
    dice: Random
    strikes: list[Strike] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)  # what did not hold, besides the bill
    notes: dict[str, int | float] = field(default_factory=dict)

    @contextmanager
    def strike(self, recovered: Callable[[], bool] | None = None) -> Iterator[None]:
        """Break in the body; at its end nothing is broken any more. Waits until all is well again."""
        struck = time.monotonic()
        yield
        mended, position = time.monotonic(), self.watch.position

        def is_live() -> bool:
            fresh = self.watch.is_fresh(since=mended, position=position, staleness_s_max=FRESH_SECONDS)
            return fresh and (recovered is None or recovered())

        self.stage.wait_until(is_live, "answers were live again")
        self.strikes.append(Strike(struck, mended, time.monotonic()))

    def must(self, holds: bool, what: str) -> None:
        """Note what should have held and did not."""
        if not holds:
            self.wrongs.append(what)

    def some_time(self) -> None:
        """Any moment of a month."""
        self.stage.pass_time(self.dice.uniform(0, self.stage.tempo.month_seconds))


@dataclass(frozen=True, slots=True)
class Fault:
    """What is broken, and what must hold then besides an exact bill."""

    name: str
    what: str
    holds: str
    play: Callable[[Scene], None]
    shares: Shares = USUAL
    store: Store = Store.DISK  # what the ledger has to lie on


def late_events(scene: Scene) -> None:
    """Nothing is broken but the order of things: many events come after their month was closed, or final."""
    before = _paper(scene)
    months = scene.stage.simulator.months_written
    with scene.strike():
        scene.stage.wait_until(
            lambda: scene.stage.simulator.months_written >= months + 2, "two months had been written"
        )

    def grown() -> bool:
        return all(now > then for now, then in zip(_paper(scene), before, strict=True))

    scene.stage.wait_until(grown, "invoices were revised and adjusted")
    revisions, adjustments = _paper(scene)
    scene.notes |= {"revisions": revisions - before[0], "adjustments": adjustments - before[1]}


def executor(scene: Scene) -> None:
    with scene.strike():
        scene.stage.cluster.kill_executor()


def worker_spare(scene: Scene) -> None:
    worker = scene.dice.choice(scene.stage.cluster.workers)
    with scene.strike():
        worker.daemon.kill()
    worker.daemon.start()
    scene.stage.wait_until(lambda: scene.stage.cluster.workers_alive == 2, "the worker was back")


def worker_none(scene: Scene) -> None:
    stage = scene.stage
    with scene.strike():
        for worker in stage.cluster.workers:
            worker.daemon.kill()
        months = stage.simulator.months_written
        stage.wait_until(
            lambda: stage.simulator.months_written >= months + OUTAGE_MONTHS, "two simulated months had passed"
        )
        backlog, began = scene.watch.flight_max(time.monotonic() - 3, time.monotonic()), time.monotonic()
        for worker in stage.cluster.workers:
            worker.daemon.start()
    scene.notes |= {"backlog_events": backlog or 0, "backlog_s": round(time.monotonic() - began, 1)}


def driver(scene: Scene) -> None:
    for _ in range(scene.stage.tempo.driver_kills):
        scene.some_time()
        with scene.strike():
            process = scene.stage.driver()
            # Java ends with it, but not at once.
            send([process, *process.children(recursive=True)], signal.SIGKILL)


def master(scene: Scene) -> None:
    stage = scene.stage
    active = stage.cluster.active_master
    if active is None:
        raise OpentabError("no master is active")
    with scene.strike(lambda: stage.cluster.active_master is not None and stage.cluster.workers_alive == 2):
        active.daemon.kill()
    active.daemon.start()
    stage.wait_until(lambda: stage.cluster.standby_master is active, "it stood by")


def broker(scene: Scene) -> None:
    with scene.strike():
        scene.stage.broker.kill()
        scene.stage.pass_time(2.0)
        scene.stage.broker.start()


def sink(scene: Scene) -> None:
    """Gone, then in each way of misbehaving, through a closing each time."""
    receiver, stage = scene.stage.receiver, scene.stage

    def delivered() -> bool:
        return _issued(scene) <= receiver.held().keys()

    with scene.strike(delivered):
        receiver.daemon.kill()
        _through_a_closing(scene)
        receiver.start()
        for mode in (Mode.SLOW, Mode.FAILS, Mode.LATE):
            receiver.behave(mode)
            tried = _requests(scene, mode)
            stage.wait_until(lambda mode=mode, tried=tried: _requests(scene, mode) > tried, f"it was {mode}")  # type: ignore[misc]
        receiver.behave(Mode.WELL)


def replica(scene: Scene) -> None:
    victim = scene.dice.choice(scene.stage.replicas)
    with scene.strike():
        victim.daemon.kill()
        scene.stage.pass_time(2.0)
        victim.start()


def replica_disk(scene: Scene) -> None:
    victim = scene.dice.choice(scene.stage.replicas)
    with scene.strike():
        victim.daemon.kill()
        victim.destroy_copy()
        victim.start()


def power_cut(scene: Scene) -> None:
    """The power goes while load is on: home and ledger lose all that was not synced."""
    with scene.strike():
        scene.stage.cut_power()
        scene.stage.start()


def checkpoint(scene: Scene) -> None:
    """It is deleted twice: under a pipeline that runs, and before its successor starts."""
    path = scene.stage.home.checkpoint_path
    with scene.strike():
        shutil.rmtree(path, ignore_errors=True)
        scene.some_time()
        process = scene.stage.driver()
        send([process, *process.children(recursive=True)], signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)


def zombie(scene: Scene) -> None:
    """The pipeline and its supervisor stand still; another pipeline takes over; then the first one wakes up."""
    stage = scene.stage
    supervisor, *frozen = stage.supervised()
    old, log = stage.driver(), stage.home.logs_path / "run.log"
    said = log.stat().st_size
    words = ["run", "--take-over", "--home", str(stage.home.path)]
    successor = Daemon("successor", [sys.executable, "-m", "opentab.cli", *words], stage.directory)
    with scene.strike():
        send([supervisor, *frozen], signal.SIGSTOP)
        began, position = time.monotonic(), scene.watch.position
        try:
            successor.start()
            stage.wait_until(lambda: scene.watch.position > position + 1, "the successor had committed")
            stage.pass_time(max(0.0, began + stage.tempo.outage_seconds - time.monotonic()))
            # The supervisor sleeps on: it would kill what has hung for so long, and here it is to be fenced.
            send(frozen, signal.SIGCONT)
            stage.wait_until(lambda: not _lives(old), "the zombie was fenced", seconds_max=FENCED_SECONDS_MAX)
        finally:
            send([supervisor, *frozen], signal.SIGCONT)
            successor.stop()
        last_words = log.read_bytes()[said:].decode(errors="replace")
        scene.must(FENCED in last_words, "the zombie ended, and did not say that it was fenced")


def disk_full(scene: Scene) -> None:
    stage = scene.stage
    filler = stage.ledger_path / "filler"
    with scene.strike():
        try:
            fill(filler)
            stage.pass_time(stage.tempo.outage_seconds)
        finally:
            filler.unlink()


def bit_flip(scene: Scene) -> None:
    """One bit of a file with entries flips. It is flipped back, as if restored, once the pipeline has refused it."""
    with scene.strike():
        while not _is_refused(scene, scene.dice.choice(_entry_files(scene))):
            pass


def storage(scene: Scene) -> None:
    """The ledger's storage answers nobody for a while; replicas go on from their own copies."""
    bucket = scene.stage.bucket
    if bucket is None:
        raise OpentabError("the ledger is on a disk here")
    with scene.strike(), bucket.frozen():
        scene.stage.pass_time(scene.stage.tempo.outage_seconds)


def folder(scene: Scene) -> None:
    """The folder of invoice files is moved away in mid-month, and is back, empty, after the month's end."""
    stage, home = scene.stage, scene.stage.home
    old = home.invoices_path.with_name("invoices-moved-away")
    shutil.rmtree(old, ignore_errors=True)
    stage.wait_until(lambda: not stage.files_missing(), "all invoice files were there")
    with scene.strike(lambda: not stage.files_missing()):
        home.invoices_path.rename(old)
        # Something that cannot be written to stands in its place, like the mount point of a disk that is gone.
        home.invoices_path.touch()
        try:
            since = time.monotonic()
            _through_a_closing(scene)
            reads = scene.watch.reads_between(since, time.monotonic())
            scene.must(all(read.answered for read in reads), "live totals stopped while the folder was gone")
        finally:
            home.invoices_path.unlink()
            home.invoices_path.mkdir()
    scene.notes["files_moved"] = _check_folders(scene, old)


FAULTS = (
    Fault(
        "late-events",
        "late events, inside and beyond the allowed lateness",
        "invoices revised and adjusted",
        late_events,
        Shares(late=0.06, beyond=0.03),
    ),
    Fault("executor", "an executor killed", "the batch is retried", executor),
    Fault("worker-spare", "a worker killed, another one left", "the batch is retried there", worker_spare),
    Fault(
        "worker-none",
        "all workers killed, and started again two simulated months later",
        "the batch waits, reads go on with their age, the backlog is worked off",
        worker_none,
    ),
    Fault("driver", "the driver killed at random moments", "back by itself", driver),
    Fault("master", "the active Spark master killed", "the standby takes over, reads never stop", master),
    Fault("broker", "the Kafka broker killed and restarted", "nothing lost, reads go on", broker),
    Fault(
        "sink",
        "the invoice sink gone, slow, answering 500, answering too late",
        "every invoice delivered, none twice in effect",
        sink,
    ),
    Fault("replica", "a replica killed", "the other one answers", replica),
    Fault("replica-disk", "a replica's LMDB destroyed", "it is made anew", replica_disk),
    Fault(
        "power-cut",
        "the disk under home and ledger loses all that was not synced, everything is killed",
        "exact after the restart",
        power_cut,
        store=Store.OWN_DISK,
    ),
    Fault("checkpoint", "the checkpoint directory deleted", "nothing changes", checkpoint),
    Fault("zombie", "the pipeline stands still and wakes up beside its successor", "fenced", zombie),
    Fault(
        "storage",
        "the ledger's storage, a bucket, unreachable",
        "reads go on with their age; waits or stops clearly, goes on after",
        storage,
        store=Store.BUCKET,
    ),
    Fault(
        "disk-full",
        "the disk under the ledger full",
        "stops clearly, goes on after",
        disk_full,
        store=Store.OWN_DISK,
    ),
    Fault(
        "bit-flip",
        "one bit of a file with entries flipped, and restored",
        "the file is refused by its name, nothing is billed from it",
        bit_flip,
    ),
    Fault(
        "folder",
        "the invoice folder moved away in mid-month, recreated after the month's end",
        "live totals go on; both folders together hold every invoice",
        folder,
    ),
)


def fill(filler: Path) -> None:
    """Leave no room on a file's disk."""
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(FILL_BYTES))
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(os.statvfs(filler.parent).f_bsize))


def _is_refused(scene: Scene, file: Path) -> bool:
    """Flip a bit of a file until the pipeline refuses it; False if compaction had replaced it: then nobody reads it."""
    log = scene.stage.home.logs_path / "run.log"
    said = log.stat().st_size

    def is_named() -> bool:
        return file.name in log.read_bytes()[said:].decode(errors="replace")

    with _flipped(file, scene.dice):
        scene.stage.wait_until(lambda: is_named() or file not in _entry_files(scene), "a damaged file was refused")
        return is_named()


def _entry_files(scene: Scene) -> list[Path]:
    """The files with entries that the journal consists of now."""
    home = scene.stage.home
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return [(journal.root / file.path).path for file in journal.entry_files()]


@contextmanager
def _flipped(file: Path, dice: Random) -> Iterator[None]:
    """One bit in the first half of a file, where its rows are, is another for a while."""
    at, bit = dice.randrange(4, file.stat().st_size // 2), 1 << dice.randrange(8)
    flip(file, at, bit)
    try:
        yield
    finally:
        flip(file, at, bit)


def flip(file: Path, at: int, bit: int) -> None:
    """Change one bit of a file in place."""
    with file.open("r+b") as handle:
        handle.seek(at)
        (byte,) = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte ^ bit]))


def _through_a_closing(scene: Scene) -> None:
    """Wait until invoices were issued that nobody had issued before."""
    before = len(_issued(scene))
    scene.stage.wait_until(lambda: len(_issued(scene)) > before, "a month was closed")


def _issued(scene: Scene) -> set[tuple[str, str, int]]:
    return {(one.period, one.customer, one.revision) for one in all_statements(scene.stage.home)}


def _paper(scene: Scene) -> tuple[int, int]:
    """How many revisions there are, and how many invoices with adjustments."""
    revisions = adjustments = 0
    for one in all_statements(scene.stage.home):
        revisions += one.revision > 1
        adjustments += any(line.kind == "adjustment" for line in one.lines)
    return revisions, adjustments


def _requests(scene: Scene, mode: Mode) -> int:
    return sum(request.mode is mode for request in scene.stage.receiver.requests())


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _check_folders(scene: Scene, old: Path) -> int:
    """Both folders together hold every file, and what is in both is the same; how many were moved away."""
    new = scene.stage.home.invoices_path
    moved = {path.relative_to(old): path for path in old.rglob("*") if path.is_file() and path.name[0] != "."}
    here = {path.relative_to(new): path for path in new.rglob("*") if path.is_file() and path.name[0] != "."}
    different = [name for name in moved.keys() & here.keys() if moved[name].read_bytes() != here[name].read_bytes()]
    scene.must(not different, f"{len(different)} invoice files differ between the old folder and the new one")
    return len(moved)
