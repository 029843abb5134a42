"""Everything at once on one machine: the simulated telecom, the pipeline, the totals as they tick."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab.config import Home
from opentab.errors import OpentabError
from opentab.heartbeat import Heartbeat, read_heartbeat
from opentab.lab.news import News
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.totals import Place, Total, customer_totals, place_of
from opentab.periods import from_us
from opentab.sinks.files import missing

START_SECONDS_MAX = 120
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """What a watcher sees at one moment."""

    totals: list[Total]
    place: Place
    heartbeat: Heartbeat | None
    generating: bool
    news: list[str]  # invoices issued since the scene before

    @property
    def invoiced(self) -> bool:
        """Whether all that was due is out."""
        return self.heartbeat is not None and self.heartbeat.invoices_position == self.place.position

    @property
    def caught_up(self) -> bool:
        return (
            self.heartbeat is not None and self.heartbeat.caught_up and self.heartbeat.position == self.place.position
        )


def play(home: Home, *, months: int, month_seconds: float, events: int, seed: int) -> Iterator[Scene]:
    """Run simulator and pipeline as processes of their own, and yield what can be read meanwhile.

    It ends when all events are in the journal and all invoices in their files. Whatever happens, no
    process stays behind.
    """
    home.logs_path.mkdir(parents=True, exist_ok=True)
    news = News(home)
    with _process("run", home) as pipeline:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _streams(home, pipeline):
            _check(pipeline, "run", home)
            if time.monotonic() > deadline:
                raise OpentabError("Spark did not start in time", hint=f"see {home.logs_path}")
            yield _scene(home, news, generating=False)
            time.sleep(POLL_SECONDS)
        options = [
            "--until-final",
            "--months",
            months,
            "--month-seconds",
            month_seconds,
            "--events",
            events,
            "--seed",
            seed,
        ]
        with _process("generate", home, *map(str, options)) as simulator:
            while simulator.poll() is None:
                _check(pipeline, "run", home)
                yield _scene(home, news, generating=True)
                time.sleep(POLL_SECONDS)
            _check(simulator, "generate", home, ended_well=True)
        finished_us = time.time_ns() // 1000
        while True:
            _check(pipeline, "run", home)
            scene = _scene(home, news, generating=False)
            yield scene
            read = scene.caught_up and scene.heartbeat and (scene.heartbeat.caught_up_us or 0) > finished_us
            if read and scene.invoiced and not _files_missing(home):
                return
            time.sleep(POLL_SECONDS)


@contextmanager
def _process(command: str, home: Home, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours in a process of its own, ended when we leave."""
    with (home.logs_path / f"demo-{command}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "opentab.cli", command, "--home", str(home.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _streams(home: Home, pipeline: subprocess.Popen[bytes]) -> bool:
    heartbeat = read_heartbeat(home.ledger_path)
    return heartbeat is not None and heartbeat.pid == pipeline.pid and heartbeat.streaming


def _check(process: subprocess.Popen[bytes], command: str, home: Home, *, ended_well: bool = False) -> None:
    code = process.poll()
    if code is None or (ended_well and code == 0):
        return
    log = home.logs_path / f"demo-{command}.log"
    raise OpentabError(f"opentab {command} ended: {_last_words(log)}", hint=f"see {log}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"


def _files_missing(home: Home) -> bool:
    invoices = Invoices.open(home.ledger_path)
    return invoices is not None and bool(missing(home.invoices_path, invoices))


def _scene(home: Home, news: News, *, generating: bool) -> Scene:
    heartbeat = read_heartbeat(home.ledger_path)
    journal = Journal.open(home.ledger_path, home.identity)
    return Scene(list(customer_totals(journal, home.calendar)), place_of(journal), heartbeat, generating, news.look())


def simulated_day(scene: Scene) -> str:
    """The day up to which the log is believed complete."""
    return "-" if scene.place.watermark_us is None else f"{from_us(scene.place.watermark_us):%Y-%m-%d}"
