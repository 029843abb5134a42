"""All that plays: a broker, a Spark cluster, pipeline and deliverer under a supervisor, two replicas, a receiver.

They are processes of their own on loopback, and all of them end with us.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from opentab.core.errors import OpentabError
from opentab.ledger.invoices import Invoices
from opentab.runtime.config import Home, load
from opentab.runtime.heartbeat import Heartbeat, read_heartbeat
from opentab.sinks.files import missing
from opentab_tools.chaos.receiver import TIMEOUT_SECONDS, Receiver
from opentab_tools.chaos.replica import Replica
from opentab_tools.chaos.simulator import Simulator
from opentab_tools.servers.broker import Broker
from opentab_tools.servers.bucket_server import BucketServer
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.loop_disk import LoopDisk
from opentab_tools.servers.spark_cluster import SparkCluster

TOPIC = "usage"
PARTITIONS = 3
WORKER_CORES = 2  # one is the pipeline's; a successor beside a zombie needs the other
PATIENCE_SECONDS = 600
POLL_SECONDS = 0.25
LEDGER_DISK_MEGABYTES = 256  # small enough to be filled
HOME_DISK_MEGABYTES = 1024

SETTINGS = """\
[log]
uri = "kafka://{broker}/{topic}"

[kafka]
partitions = {partitions}

{ledger}

[pipeline]
# Everything goes to the executors: they are what is killed.
compact_files = 16
snapshot_batches = 50

[invoices]
http_url = "{receiver}"
http_key_file = "{key}"
http_timeout = "{timeout}s"

[spark]
master = "{master}"
driver.host = "127.0.0.1"
driver.bindAddress = "127.0.0.1"
driver.memory = "512m"
cores.max = "2"
executor.cores = "1"
executor.memory = "512m"
"""


class Store(StrEnum):
    """What the ledger lies on."""

    DISK = "disk"
    OWN_DISK = "disk of its own"  # which can be filled and whose power can be cut: for root
    BUCKET = "bucket"  # of a server that speaks S3


@dataclass(frozen=True, slots=True)
class Tempo:
    """How long things take: in its short form every fault is played once, quickly."""

    month_seconds: float
    events: int  # a customer and month
    driver_kills: int
    outage_seconds: float  # of what is unreachable, or stands still


SHORT = Tempo(month_seconds=5.0, events=200, driver_kills=1, outage_seconds=8.0)
LONG = Tempo(month_seconds=10.0, events=1000, driver_kills=5, outage_seconds=60.0)


class Stage:
    """The processes, and what can be known of them from outside."""

    def __init__(self, directory: Path, *, seed: int, tempo: Tempo, store: Store) -> None:
        self.directory = directory
        self.store = store
        self.ledger_path = directory / "ledger"
        self.disks: list[LoopDisk] = []
        if store is Store.OWN_DISK:
            directory.mkdir(parents=True, exist_ok=True)
            self.disks = [
                LoopDisk(directory / "ledger.img", self.ledger_path, megabytes=LEDGER_DISK_MEGABYTES),
                LoopDisk(directory / "home.img", directory / "home", megabytes=HOME_DISK_MEGABYTES),
            ]
        self.bucket: BucketServer | None = None
        if store is Store.BUCKET:
            directory.mkdir(parents=True, exist_ok=True)
            self.bucket = BucketServer(directory / "bucket.log")
        self.tempo = tempo
        self.broker = Broker(directory / "broker")
        self.cluster = SparkCluster(directory / "spark", worker_cores=WORKER_CORES)
        self.receiver = Receiver(directory / "receiver")
        self.home = self._make_home(directory / "home")
        self.replicas = [Replica(directory / f"replica-{number}", self._ledger_settings) for number in (1, 2)]
        words = ["up", "--home", str(self.home.path), "--without", "serve", "--hung-after", "60s"]
        self.supervisor = Daemon("up", [sys.executable, "-m", "opentab.cli", *words], directory)
        # Who writes events is another machine, whose power stays on.
        writer = self._make_home(directory / "simulator")
        (self.home.path / "expected").symlink_to(writer.path / "expected")
        self.simulator = Simulator(writer, seed=seed, month_seconds=tempo.month_seconds, events=tempo.events)
        os.sync()  # the home was made long ago

    def __enter__(self) -> Stage:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.simulator.kill()
        if self.bucket is not None:
            self.bucket.stop()
        self.kill()
        for disk in self.disks:
            disk.close()

    def start(self) -> None:
        """Start what does not run; returns when all of it does, the pipeline with its stream."""
        # Who writes to the log waits for it, but not for long.
        self.broker.start()
        self.receiver.start()
        self.cluster.start()
        self.supervisor.start()
        for replica in self.replicas:
            replica.start()
        self.wait_until(lambda: self.streams, "the pipeline's stream ran")

    def kill(self) -> None:
        """SIGKILL for all of it at once; who writes events is elsewhere."""
        tree = self.supervised()
        for daemon in (self.supervisor, self.receiver.daemon, *(replica.daemon for replica in self.replicas)):
            daemon.signal(signal.SIGKILL)
        send(tree, signal.SIGKILL)
        self.broker.kill()
        self.cluster.kill()
        for daemon in (self.supervisor, self.receiver.daemon, *(replica.daemon for replica in self.replicas)):
            daemon.kill()

    def cut_power(self) -> None:
        """Nothing that was not synced is left on the disks of home and ledger, and every process is gone."""
        for disk in self.disks:
            disk.cut()
        self.kill()
        for disk in self.disks:
            disk.restore()

    @property
    def heartbeat(self) -> Heartbeat | None:
        return read_heartbeat(self.home.ledger)

    def files_missing(self) -> bool:
        """Whether an invoice file is not there."""
        invoices = Invoices.open(self.home.ledger)
        return invoices is not None and bool(missing(self.home.invoices_path, invoices))

    @property
    def streams(self) -> bool:
        """Whether a pipeline lives, with its Spark."""
        beat = self.heartbeat
        return beat is not None and beat.streaming and time.time() - beat.at_us / 1e6 < 5

    def driver(self) -> psutil.Process:
        """The pipeline's own process."""
        beat = self.heartbeat
        if beat is None or not psutil.pid_exists(beat.pid):
            raise OpentabError("there is no pipeline to be found")
        return psutil.Process(beat.pid)

    def supervised(self) -> list[psutil.Process]:
        """The supervisor and all below it."""
        if not self.supervisor.runs:
            return []
        top = psutil.Process(self.supervisor.pid)
        return [top, *top.children(recursive=True)]

    def wait_until(self, done: Callable[[], bool], what: str, *, seconds_max: float = PATIENCE_SECONDS) -> None:
        """Wait for a fact, with the load kept on; raise if it takes too long."""
        deadline = time.monotonic() + seconds_max
        while not done():
            self.simulator.keep()
            if time.monotonic() > deadline:
                raise OpentabError(f"waited {seconds_max:.0f} s in vain until {what}", hint=f"see {self.directory}")
            time.sleep(POLL_SECONDS)

    def pass_time(self, seconds: float) -> None:
        """Let load flow for some time: a fault's own duration, nothing is waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.simulator.keep()
            time.sleep(POLL_SECONDS)

    @property
    def _ledger_settings(self) -> str:
        return self.bucket.settings() if self.bucket is not None else f'[ledger]\nuri = "{self.ledger_path}"'

    def _make_home(self, path: Path) -> Home:
        path.mkdir(parents=True, exist_ok=True)
        self.ledger_path.mkdir(parents=True, exist_ok=True)
        text = SETTINGS.format(
            broker=self.broker.address,
            topic=TOPIC,
            partitions=PARTITIONS,
            ledger=self._ledger_settings,
            receiver=self.receiver.url,
            key=self.receiver.key_path,
            timeout=f"{TIMEOUT_SECONDS:.0f}",
            master=self.cluster.master_url,
        )
        (path / "opentab.toml").write_text(text, encoding="utf-8")
        return load(path)


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """A signal to each of them that still lives."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
