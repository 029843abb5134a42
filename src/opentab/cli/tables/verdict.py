"""What `opentab verify` found, as lines and as JSON."""

from __future__ import annotations

from typing import Any

from opentab.audit import Report
from opentab.core.money import format_micros
from opentab.runtime import terminal
from opentab.runtime.terminal import plural


def verdict_json(report: Report, unverified: int) -> dict[str, Any]:
    """The whole report; `unverified` files have no checksums."""
    return {
        "agrees": report.agrees,
        "batches": report.batches,
        "events": report.events,
        "rejections": report.rejections,
        "duplicates": report.duplicates,
        "amount": format_micros(report.amount_micros),
        "not_yet_billed_segments": report.not_yet_billed_segments,
        "unverified_files": unverified,
        "seconds": round(report.seconds, 3),
        "checks": [
            {"name": c.name, "compared": c.compared, "differences": c.differences, "samples": c.samples, "note": c.note}
            for c in report.checks
        ],
    }


def print_checks(report: Report, unverified: int) -> None:
    """A line for each check, samples of what differs, and what was not looked at."""
    for check in report.checks:
        mark = terminal.paint("agrees ", terminal.GREEN) if check.agrees else terminal.paint("DIFFERS", terminal.RED)
        note = f"  ({check.note})" if check.note else ""
        found = "" if check.agrees else f", {check.differences:,} differ"
        terminal.write(f"{mark}  {check.name:<14} {check.compared:>12,} compared{found}{note}")
        for sample in check.samples:
            terminal.write(f"           {terminal.printable(sample)}")
    if report.not_yet_billed_segments:
        terminal.write(f"not yet billed: {plural(report.not_yet_billed_segments, 'segment')} of the log")
    if unverified:
        terminal.write(f"unverified: {plural(unverified, 'file')} of an earlier version, written without checksums")


def sums_text(report: Report, currency: str) -> str:
    """Events, rejections and the amount, all together."""
    duplicates = f"{plural(report.duplicates, 'duplicate')}, " if report.duplicates else ""
    return (
        f"{plural(report.events, 'event')}, {plural(report.rejections, 'rejection')}, {duplicates}"
        f"{format_micros(report.amount_micros)} {currency} in {plural(report.batches, 'batch', 'batches')}"
    )
