"""`opentab log clock`: where the clocks of log, journal and machine stand, and the restart of arrival (ADR 20)."""

from __future__ import annotations

from dataclasses import dataclass

from opentab.billing.bill import AHEAD_MAX_US, Job
from opentab.billing.log_check import join_log
from opentab.billing.pipeline_lock import Claim, HomeLock
from opentab.billing.source import open_source
from opentab.core.periods import to_us
from opentab.core.records import ClockRestart
from opentab.ledger.journal import Journal
from opentab.log import open_log
from opentab.log.arrivals import trusted_us
from opentab.log.clock import Restart, mismatch, read_restart, restart_place, write_restart
from opentab.log.directory import Clock, wall_clock
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.tables.files import new_run


@dataclass(frozen=True, slots=True)
class PartitionClock:
    """Where arrival stands in one partition of the log."""

    partition: str
    last: int  # the segment or message with the newest stamp; a message's number is its offset + 1
    stamp_us: int
    billed: int  # the last one in the journal
    billed_us: int | None  # the arrival in the journal
    refused: str | None  # why nothing can be appended
    held_back: bool


def clocks_of(home: Home, *, clock: Clock = wall_clock) -> tuple[int, list[PartitionClock]]:
    """This machine's clock, and where each partition of the log stands."""
    now_us = to_us(clock())
    journal = Journal.open(home.ledger, home.identity)
    record = journal.last() if journal else None
    told = read_restart(restart_place(home)) or Restart(0, {})
    log = open_log(home)
    stamps = log.last_stamps()
    log.close()
    lasts_us = {
        name: told.at_us if number <= told.upto.get(name, 0) else stamp_us
        for name, (number, stamp_us) in stamps.items()
    }
    found = []
    for name, (number, stamp_us) in sorted(stamps.items()):
        state = record.partitions.get(name) if record else None
        # A topic's partitions are silent for as long as their customers are: only all of them together tell of a clock.
        tells = home.kafka is None or lasts_us[name] == max(lasts_us.values())
        silence_max = home["log.silence_max"] if tells else None
        wrong = mismatch(f"log partition {name!r}", lasts_us[name], now_us, silence_max)
        ahead = trusted_us(stamp_us, record.restarts if record else [], name, number - 1) > now_us + AHEAD_MAX_US
        billed = state.segment if state else 0
        found.append(
            PartitionClock(
                partition=name,
                last=number,
                stamp_us=stamp_us,
                billed=billed,
                billed_us=state.arrived_us if state else None,
                refused=wrong.fact if wrong else None,
                held_back=ahead and number > billed,
            )
        )
    return now_us, found


def restart_clock(home: Home, *, clock: Clock = wall_clock) -> ClockRestart:
    """Let arrival run anew from now, in the journal and for producers.

    1. one batch without events records it; 2. producers are told. Killed in between, appends are still refused, and a
    second restart changes nothing that the first one did not.
    """
    lock = HomeLock(home.path, take_over=False)
    try:
        run, source = new_run(), open_source(home)
        journal, log_id = join_log(home, source)
        claim = Claim(home.ledger, run)
        job = Job(home, journal, source, run=run, log_id=log_id, is_ours=claim.is_ours, clock=clock)
        source.open(job.offsets)
        restart = job.restart_clock()
        crash.moment("clock_restarted")
        write_restart(restart_place(home), Restart(restart.at_us, restart.upto))
        source.close()
        return restart
    finally:
        lock.release()
