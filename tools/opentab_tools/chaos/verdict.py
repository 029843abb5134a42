"""The verdict after a fault: all of the log is billed, and everyone says the same, to the cent.

The audit recomputes the bills from Kafka's topic with code of its own and compares them with the simulator's. Then the
invoices that the receiver holds are compared with the ledger's, and the totals of both replicas.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from opentab.core.errors import OpentabError
from opentab.simulator.invoice_ticker import all_statements
from opentab_tools.chaos.replica import Replica
from opentab_tools.chaos.stage import Stage

VERIFY_SECONDS_MAX = 600
PERIODS_COMPARED = 6  # at each replica


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    wrongs: tuple[str, ...]
    events: int  # in all so far
    invoices: int  # revisions, in all so far
    repeats: int  # deliveries that came again, in all so far

    @property
    def exact(self) -> bool:
        return not self.wrongs


def judge(stage: Stage) -> Verdict:
    """Wait until nothing is on its way any more, then ask everyone."""
    stage.simulator.end()
    stage.wait_until(stage.simulator.is_idle, "all events were in the log")
    written = time.time_ns() // 1000
    wrongs: list[str] = []
    try:
        stage.wait_until(lambda: _all_is_billed(stage, written), "all of the log was billed and invoiced")
        stage.wait_until(lambda: _all_is_delivered(stage), "all invoices were delivered")
    except OpentabError as error:
        wrongs.append(error.fact)
    audit = _audit(stage)
    if not audit["agrees"]:
        differs = ", ".join(f"{c['name']} {c['samples'][:2]}" for c in audit["checks"] if c["differences"])
        wrongs.append(f"the audit differs: {differs}")
    if not any(check["name"] == "expected bills" and check["compared"] for check in audit["checks"]):
        wrongs.append("the audit knew no bills to compare with")
    wrongs += _wrongs_at_the_receiver(stage)
    totals = _opentab(stage, "totals", "--format", "json")
    for replica in stage.replicas:
        wrongs += _wrongs_at(replica, stage, totals)
    requests = list(stage.receiver.requests())
    return Verdict(
        wrongs=tuple(wrongs),
        events=int(audit["events"]),
        invoices=sum(1 for _ in all_statements(stage.home)),
        repeats=len(requests) - len({request.id for request in requests}),
    )


def _all_is_billed(stage: Stage, written_us: int) -> bool:
    beat = stage.heartbeat
    return (
        beat is not None
        and beat.caught_up
        and (beat.caught_up_us or 0) > written_us
        and beat.invoices_position == beat.position
    )


def _all_is_delivered(stage: Stage) -> bool:
    held = stage.receiver.held()
    return all((one.period, one.customer, one.revision) in held for one in all_statements(stage.home))


def _audit(stage: Stage) -> dict[str, Any]:
    found = _opentab(stage, "verify", "--format", "json")
    return dict(found[0])


def _wrongs_at_the_receiver(stage: Stage) -> list[str]:
    held = stage.receiver.held()
    issued = {(one["period"], one["customer"], one["revision"]): one for one in _invoices(stage)}
    wrongs = [f"{place} was delivered under {len(bodies)} ids" for place, bodies in held.items() if len(bodies) > 1]
    wrongs += [f"{place} was not delivered" for place in issued.keys() - held.keys()]
    wrongs += [f"{place} was delivered and never issued" for place in held.keys() - issued.keys()]
    wrongs += [
        f"{place} was delivered with other amounts"
        for place, bodies in held.items()
        if place in issued and any(msgspec.json.decode(body) != issued[place] for body in bodies.values())
    ]
    unsigned = sum(not request.signed for request in stage.receiver.requests())
    if unsigned:
        wrongs.append(f"{unsigned} deliveries had no valid signature")
    return wrongs[:10]


def _wrongs_at(replica: Replica, stage: Stage, totals: list[dict[str, Any]]) -> list[str]:
    """Compare a replica's totals of the last months with the ledger's."""
    beat = stage.heartbeat
    position = beat.position if beat else 0
    try:
        stage.wait_until(lambda: (replica.position() or 0) >= position, "the replica had all", seconds_max=120)
    except OpentabError as error:
        return [f"{replica.home.path.name}: {error.fact}"]
    wrongs = []
    for period in sorted({total["period"] for total in totals})[-PERIODS_COMPARED:]:
        _, answer = replica.ask(f"/v1/customers?period={period}")
        here = {item["customer"]: item["total"] for item in answer["items"]}
        there = {total["customer"]: total["total"] for total in totals if total["period"] == period}
        if here != there:
            wrongs.append(f"{replica.home.path.name} has other totals for {period}")
    return wrongs


def _invoices(stage: Stage) -> list[dict[str, Any]]:
    return _opentab(stage, "invoices", "--all-revisions", "--format", "json")


def _opentab(stage: Stage, *words: str) -> list[dict[str, Any]]:
    """What a command prints as JSON lines, as anyone would run it."""
    command = [sys.executable, "-m", "opentab.cli", *words, "--home", str(stage.home.path)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=VERIFY_SECONDS_MAX)
    lines = done.stdout.splitlines()
    if not lines and done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OpentabError(f"opentab {words[0]} failed: {said[-1] if said else 'without a word'}")
    return [msgspec.json.decode(line) for line in lines]
