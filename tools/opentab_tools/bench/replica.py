"""opentab bench replica: how long a new replica takes, from the balances and without them, and what it weighs.

Each time a process of its own begins anew, in turn with and without balances, so that drift of the machine meets
both.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab.ledger import balances
from opentab.runtime.config import Home
from opentab_tools.bench.audited import audit_replica
from opentab_tools.bench.billed_home import bill_month, copy_home, journal_of
from opentab_tools.bench.catch_up import CatchUp, measure_catch_up
from opentab_tools.bench.figures import MEBIBYTE, Figure, Say, at_least, at_most, plain, write_json
from opentab_tools.measuring.disk_usage import disk_bytes
from opentab_tools.measuring.machine import describe_machine
from opentab_tools.servers.served_home import served

BOOTSTRAP_SECONDS_MAX = 10.0
ENTRIES_PER_SECOND_MIN = 500_000


@dataclass(frozen=True, slots=True)
class ReplicaTurn:
    """A replica made from the balances, the same by folding every batch, and a server that begins without one."""

    bootstrap: CatchUp
    fold: CatchUp
    serve_seconds: float  # from the start of the command to answers at the ledger's position
    bootstrap_disk_bytes: int
    fold_disk_bytes: int


def bench_replica(*, customers: int, repeats: int, json_path: Path | None, work_dir: Path, say: Say) -> list[Figure]:
    """Measure a new replica of so many customers; write the figures where asked to."""
    machine = describe_machine()
    say(f"billing a month of {customers:,} customers")
    home = bill_month(work_dir / "home", customers=customers)
    figures = measure_replica(home, work_dir / "balances", customers=customers, repeats=repeats, say=say)
    write_json(json_path, machine, figures)
    return figures


def measure_replica(home: Home, path: Path, *, customers: int, repeats: int, say: Say) -> list[Figure]:
    """Make replicas of a billed home that has no balances, and of a copy that has them."""
    with_balances = copy_home(home, path)
    balances.write_snapshot(journal_of(with_balances), with_balances.calendar)
    turns = []
    for repeat in range(1, repeats + 1):
        turn = _turn(home, with_balances)
        say(
            f"{repeat} of {repeats}: {turn.bootstrap.seconds:.1f} s from the balances, "
            f"{turn.fold.seconds:.1f} s for {turn.fold.batches} batches, {turn.serve_seconds:.1f} s for serve"
        )
        turns.append(turn)
    entries = sum(record.entry_rows for record in journal_of(home).batches())
    return replica_figures(turns, customers=customers, entries=entries)


def replica_figures(turns: Sequence[ReplicaTurn], *, customers: int, entries: int) -> list[Figure]:
    """What the turns come to."""
    label = f"{customers:,} customers"
    rates = [entries / turn.fold.seconds for turn in turns]
    return [
        at_most(
            f"new replica from balances, {label}",
            [turn.bootstrap.seconds for turn in turns],
            "s",
            BOOTSTRAP_SECONDS_MAX,
        ),
        plain(f"serve from its start to the first answer, {label}", [turn.serve_seconds for turn in turns], "s"),
        plain(f"new replica without balances, {label}", [turn.fold.seconds for turn in turns], "s"),
        at_least("journal entries folded, one core", rates, "entries/s", ENTRIES_PER_SECOND_MIN),
        plain("journal entries", [entries], "entries"),
        plain("batches", [turns[0].fold.batches], "batches"),
        plain("peak memory from balances", [t.bootstrap.memory_bytes_max / MEBIBYTE for t in turns], "MiB"),
        plain("peak memory without balances", [t.fold.memory_bytes_max / MEBIBYTE for t in turns], "MiB"),
        plain("on disk from balances", [t.bootstrap_disk_bytes / MEBIBYTE for t in turns], "MiB"),
        plain("on disk without balances", [t.fold_disk_bytes / MEBIBYTE for t in turns], "MiB"),
    ]


def _turn(home: Home, with_balances: Home) -> ReplicaTurn:
    bootstrap = _begin_anew(with_balances, home.expected_path)
    bootstrap_disk_bytes = disk_bytes(with_balances.replica_path)
    fold = _begin_anew(home, home.expected_path, one_core=True)
    if fold.batches != fold.position:
        raise OpentabError("the home has balances, so not all of its journal was folded")
    shutil.rmtree(with_balances.replica_path)
    began = time.perf_counter()
    with served(with_balances, workers=1):
        serve_seconds = time.perf_counter() - began
    return ReplicaTurn(bootstrap, fold, serve_seconds, bootstrap_disk_bytes, disk_bytes(home.replica_path))


def _begin_anew(home: Home, expected_path: Path, *, one_core: bool = False) -> CatchUp:
    shutil.rmtree(home.replica_path, ignore_errors=True)
    made = measure_catch_up(home, one_core=one_core)
    if made.position != journal_of(home).position:
        raise OpentabError(f"the replica stopped at {made.position:,}, before the ledger's end")
    audit_replica(home, expected_path=expected_path)
    return made
