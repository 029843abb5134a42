"""Everything at once on one machine: the simulated telecom, pipeline, replica and server, the totals as they tick."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentab.core.errors import OpentabError
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.totals import Place, Total, customer_totals, place_of
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, read_heartbeat
from opentab.simulator.command import Command, started, streams, wait_until
from opentab.simulator.invoice_ticker import News
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


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs for as long as the demo is watched: the pipeline, and the server with its replica."""

    home: Home
    pipeline: Command
    server: Command
    url: str

    def check(self) -> None:
        """Raise if a part of it has ended."""
        self.pipeline.check()
        self.server.check()


@contextmanager
def staged(home: Home, *, port: int) -> Iterator[Stage]:
    """Start pipeline and server; yields once the server answers. Whatever happens, no process stays behind."""
    with started(home, "serve", "--port", str(port)) as server, started(home, "run") as pipeline:
        stage = Stage(home, pipeline, server, f"http://127.0.0.1:{port}")
        wait_until(lambda: _answers(port), "the server answered", server, pipeline, poll_seconds=0.1)
        yield stage


def play(stage: Stage, *, months: int, month_seconds: float, events: int, seed: int) -> Iterator[Scene]:
    """Run the simulator beside them, and yield what can be read meanwhile.

    It ends when all events are in the journal and all invoices in their files.
    """
    home, news = stage.home, News(stage.home)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not streams(home, stage.pipeline):
        stage.check()
        if time.monotonic() > deadline:
            raise OpentabError("Spark did not start in time", hint=f"see {home.logs_path}")
        yield _scene(home, news, generating=False)
        time.sleep(POLL_SECONDS)
    amounts = {"months": months, "month-seconds": month_seconds, "events": events, "seed": seed}
    options = [word for name, value in amounts.items() for word in (f"--{name}", str(value))]
    with started(home, "generate", "--until-final", *options) as simulator:
        while simulator.runs:
            stage.check()
            yield _scene(home, news, generating=True)
            time.sleep(POLL_SECONDS)
        simulator.check(ended_well=True)
    finished_us = time.time_ns() // 1000
    while True:
        stage.check()
        scene = _scene(home, news, generating=False)
        yield scene
        read = scene.caught_up and scene.heartbeat and (scene.heartbeat.caught_up_us or 0) > finished_us
        if read and scene.invoiced and not _files_missing(home):
            return
        time.sleep(POLL_SECONDS)


def stay(stage: Stage, say: Callable[[str], None]) -> None:
    """Keep it running until someone interrupts.

    Not by KeyboardInterrupt: that is lost where it is raised while Python, or a library, cleans up behind a query.
    """
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    say(f"The page stays at {stage.url}/ until you press Ctrl-C.")
    while not over.wait(POLL_SECONDS):
        stage.check()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _files_missing(home: Home) -> bool:
    invoices = Invoices.open(home.ledger)
    return invoices is not None and bool(missing(home.invoices_path, invoices))


def _scene(home: Home, news: News, *, generating: bool) -> Scene:
    heartbeat = read_heartbeat(home.ledger)
    journal = Journal.open(home.ledger, home.identity)
    return Scene(list(customer_totals(journal, home.calendar)), place_of(journal), heartbeat, generating, news.look())


def simulated_day(scene: Scene) -> str:
    """The day up to which the log is believed complete."""
    return "-" if scene.place.watermark is None else scene.place.watermark[:10]
