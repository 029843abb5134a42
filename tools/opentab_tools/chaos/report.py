"""What a run of chaos says: a table, the matrix of the demo that inspired us, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentab_tools.chaos.play import Result, Run
from opentab_tools.chaos.stage import Store
from opentab_tools.chaos.verdict import Verdict
from opentab_tools.measuring.machine import describe_machine

COLUMNS = ("fault", "exact", "recovery", "reads answered", "staleness at most", "in flight at most")
NOT_PLAYED = "not played"


def as_json(run: Run) -> dict[str, Any]:
    """The run as one JSON object."""
    return {
        "seed": run.seed,
        "began_at": run.began_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "seconds": round(run.seconds, 1),
        "exact": run.exact,
        "reads_answered": round(run.reads_answered, 5),
        "broken": run.broken,
        "faults": [_fault_json(result) for result in run.results],
        "matrix": dict(matrix(run)),
        "machine": describe_machine(),
    }


def row(result: Result) -> tuple[str, ...]:
    """A fault's line of the table."""
    return (
        result.fault.name,
        "yes" if result.exact else "NO",
        _seconds(result.recovery_s),
        _percent(result.reads_answered),
        _seconds(result.staleness_s_max),
        "-" if result.in_flight_max is None else f"{result.in_flight_max:,} events",
    )


def matrix(run: Run) -> list[tuple[str, str]]:
    """The matrix of the demo that inspired us: each cell is what was measured."""
    invoices = sum(verdict.invoices for verdict in _last_verdicts(run))
    exact = sum(result.exact for result in run.results)
    calm = run.calm
    live = (
        f"{calm.staleness_s_p50:.1f} s old at the median, {calm.staleness_s_p99:.1f} s at the 99th percentile"
        if calm.staleness_s_p50 is not None and calm.staleness_s_p99 is not None
        else NOT_PLAYED
    )
    return [
        ("Invoices", f"{invoices:,} issued, all delivered and all right" if run.exact else "NOT RIGHT"),
        ("Live Updates", live),
        ("Correctness", f"{exact} of {len(run.results)} faults exact to the cent" + _of_events(run)),
        ("Availability", f"{_percent(run.reads_answered)} of {len(run.reads):,} reads answered, faults included"),
        ("Late Events", _late(run)),
        ("Worker", _recoveries(run, ("executor", "worker-spare", "worker-none"))),
        ("Master", _recoveries(run, ("master",))),
        ("Sink", _sink(run)),
        ("Scalability", _backlog(run)),
    ]


def markdown(run: Run) -> str:
    """The run as a document."""
    machine = describe_machine()
    lines = [
        f"`opentab chaos` on {run.began_at:%Y-%m-%d}, seed {run.seed}: {machine['cpu_model']}, "
        f"{machine['cpu_count']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB; {run.seconds / 60:.0f} minutes.",
        "",
        *_table(COLUMNS, [row(result) for result in run.results]),
        "",
        *_table(("what", "measured"), matrix(run)),
    ]
    if run.broken:
        lines += ["", run.broken]
    wrongs = [(result.fault.name, wrong) for result in run.results for wrong in result.wrongs]
    if wrongs:
        lines += ["", *_table(("fault", "what was wrong"), wrongs)]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in rows]


def _fault_json(result: Result) -> dict[str, Any]:
    return {
        "fault": result.fault.name,
        "exact": result.exact,
        "recovery_s": _rounded(result.recovery_s),
        "reads_answered": None if result.reads_answered is None else round(result.reads_answered, 5),
        "staleness_s_max": _rounded(result.staleness_s_max),
        "in_flight_max": result.in_flight_max,
        "broken_s": round(result.broken_s, 3),
        "replica_reads_answered": [round(share, 5) for share in result.replica_reads_answered],
        "strikes": len(result.strikes),
        "events": result.verdict.events if result.verdict else None,
        "wrongs": list(result.wrongs),
        **({"notes": result.notes} if result.notes else {}),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def _percent(share: float | None) -> str:
    # Rounded down: 100 % is said of all reads only.
    return "-" if share is None else f"{int(share * 1000) / 10:.1f} %"


def _of_events(run: Run) -> str:
    return f", {sum(verdict.events for verdict in _last_verdicts(run)):,} events"


def _last_verdicts(run: Run) -> list[Verdict]:
    """The last verdict on each stage: it counts all that was before."""
    found = {result.fault.store is Store.BUCKET: result.verdict for result in run.results if result.verdict}
    return [*found.values()]


def _named(run: Run, name: str) -> list[Result]:
    return [result for result in run.results if result.fault.name == name]


def _recoveries(run: Run, names: Sequence[str]) -> str:
    told = [
        f"{name}: {_seconds(result.recovery_s)}, {_percent(result.reads_answered)} of reads answered"
        for name in names
        for result in _named(run, name)[:1]
    ]
    return "; ".join(told) or NOT_PLAYED


def _late(run: Run) -> str:
    for result in _named(run, "late-events"):
        if "revisions" in result.notes:
            return f"{result.notes['revisions']:,} revisions, {result.notes['adjustments']:,} invoices with adjustments"
    return NOT_PLAYED


def _sink(run: Run) -> str:
    for result in _named(run, "sink"):
        if result.verdict is not None:
            repeats = f"{result.verdict.repeats:,} deliveries came again"
            return f"all delivered {_seconds(result.recovery_s)} after it was back; {repeats}, none twice in effect"
    return NOT_PLAYED


def _backlog(run: Run) -> str:
    for result in _named(run, "worker-none"):
        if result.notes.get("backlog_events") and result.notes.get("backlog_s"):
            events, seconds = result.notes["backlog_events"], result.notes["backlog_s"]
            worked = f"worked off in {seconds:.0f} s by two executors of one core"
            return f"a backlog of {events:,} events, and what came meanwhile, {worked}"
    return NOT_PLAYED
