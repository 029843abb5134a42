"""Figures that a bench measured: values with their spread, beside what they are meant to be."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

MEBIBYTE = 2**20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `met` is None where there is no goal."""

    name: str
    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None
    spread: tuple[float, float] | None = None  # the least and the most of the repeats
    peer: str | None = None  # whose figure it is, or whom it compares with; None: opentab alone


def plain(name: str, values: Sequence[float], unit: str) -> Figure:
    """A figure without a goal: the median, and its spread where there are several."""
    spread = (min(values), max(values)) if len(values) > 1 else None
    return Figure(name, statistics.median(values), unit, spread=spread)


def at_least(name: str, values: Sequence[float], unit: str, goal: float) -> Figure:
    """A figure that should not be below its goal."""
    value = statistics.median(values)
    return _with_goal(plain(name, values, unit), f"≥ {goal:,}", value >= goal)


def at_most(name: str, values: Sequence[float], unit: str, goal: float) -> Figure:
    """A figure that should not be above its goal."""
    value = statistics.median(values)
    return _with_goal(plain(name, values, unit), f"≤ {goal:,}", value <= goal)


def as_json(machine: dict[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """The document that `--json` writes."""
    return {"machine": machine, "figures": [asdict(figure) for figure in figures]}


def write_json(path: Path | None, machine: dict[str, Any], figures: Sequence[Figure]) -> None:
    """Write that document, where it is wanted."""
    if path is not None:
        document = json.dumps(as_json(machine, figures), indent=2, ensure_ascii=False)
        path.write_text(document + "\n", encoding="utf-8")


def render(figures: Sequence[Figure]) -> str:
    """An aligned table."""
    header = ("figure", "value", "unit", "least", "most", "goal", "met")
    rows = [header, *map(_cells, figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    numbers = {header.index(name) for name in ("value", "least", "most")}
    lines = [
        "  ".join(
            cell.rjust(w) if i in numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _with_goal(figure: Figure, goal: str, met: bool) -> Figure:
    return replace(figure, goal=goal, met=met)


def _cells(figure: Figure) -> tuple[str, ...]:
    least, most = map(number, figure.spread) if figure.spread else ("", "")
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    return (figure.name, number(figure.value), figure.unit, least, most, figure.goal or "", met)


def number(value: float) -> str:
    """Three digits or more: 0.973, 27.4, 512,345."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
