"""opentab bench recovery: how long after a SIGKILL the pipeline commits again, and the server answers again.

A real pipeline takes in small segments four times a second. It is killed and started anew, as a supervisor would do it,
or a pipeline that stands by takes over. The clock runs from the kill to the next commit that holds events.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab.runtime.config import Home
from opentab.simulator.command import Command, started, streams, wait_until
from opentab_tools.bench.audited import audit
from opentab_tools.bench.billed_home import bill_month, journal_of
from opentab_tools.bench.feeder import Feeder
from opentab_tools.bench.figures import Figure, Say, at_most, plain, write_json
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.servers.served_home import served

BEFORE_THE_END = "2026-01-31T06:00:00Z"
COMMITS_BEFORE = 3
POLL_SECONDS = 0.02


def bench_recovery(*, customers: int, repeats: int, json_path: Path | None, work_dir: Path, say: Say) -> list[Figure]:
    """Kill and start again, as often as wanted; write the figures where asked to."""
    machine = describe_machine()
    say(f"billing a month of {customers:,} customers")
    home = bill_month(work_dir / "home", customers=customers)
    feeder = Feeder(home, at=BEFORE_THE_END)
    pipeline_seconds, server_seconds = [], []
    feeder.start()
    try:
        killed_at = None
        for repeat in range(repeats + 1):  # the first start is not one after a kill
            position = journal_of(home).position
            with started(home, "run") as pipeline:
                wait_until(lambda: streams(home, pipeline), "Spark was up", pipeline, poll_seconds=POLL_SECONDS)
                _wait_for_commits(home, pipeline, 1, after=position)
                if killed_at is not None:
                    pipeline_seconds.append(time.monotonic() - killed_at)
                    say(f"{repeat} of {repeats}: the pipeline commits {pipeline_seconds[-1]:.1f} s after its kill")
                _wait_for_commits(home, pipeline, COMMITS_BEFORE, after=journal_of(home).position)
                killed_at = time.monotonic()
                _kill(pipeline)
        standby_seconds = _take_overs(home, repeats, say)
    finally:
        feeder.stop()
    audit(home)
    for _ in range(repeats + 1):
        began = time.monotonic()
        with served(home, workers=1) as server:
            server_seconds.append(time.monotonic() - began)
            _kill(server.command)
    label = f"{customers:,} customers"
    figures = [
        plain(f"from SIGKILL of the pipeline to its next commit, {label}", pipeline_seconds, "s"),
        at_most(f"from SIGKILL of the pipeline to the standby's next commit, {label}", standby_seconds, "s", 10.0),
        plain(f"from a new server's start to its answers behind a SIGKILL, {label}", server_seconds[1:], "s"),
    ]
    write_json(json_path, machine, figures)
    return figures


def _take_overs(home: Home, repeats: int, say: Say) -> list[float]:
    """Kill the pipeline while another one stands by, which is killed next; the seconds to the next commit."""
    seconds = []
    with ExitStack() as stack:
        leader = stack.enter_context(started(home, "run"))
        for repeat in range(1, repeats + 1):
            standby = stack.enter_context(started(home, "run", "--standby", log=f"standby-{repeat}"))
            wait_until(partial(standby.says, "standing by: "), "another one stood by", standby)
            _wait_for_commits(home, leader, COMMITS_BEFORE, after=journal_of(home).position)
            killed_at = time.monotonic()
            _kill(leader)
            _wait_for_commits(home, standby, 1, after=journal_of(home).position)
            seconds.append(time.monotonic() - killed_at)
            say(f"{repeat} of {repeats}: the standby commits {seconds[-1]:.1f} s after the kill")
            leader = standby
    return seconds


def _wait_for_commits(home: Home, pipeline: Command, count: int, *, after: int) -> None:
    """Wait until so many batches with events have come behind a position."""

    def came() -> bool:
        records = journal_of(home).batches(after=after)
        return sum(record.event_count > 0 for record in records) >= count

    wait_until(came, "there were commits", pipeline, poll_seconds=POLL_SECONDS)


def _kill(command: Command) -> None:
    """SIGKILL for a command and all that it started."""
    try:
        os.killpg(command.process.pid, signal.SIGKILL)
    except ProcessLookupError as error:
        raise OpentabError(f"opentab {command.name} had ended before it was killed") from error
    command.process.wait()
