"""docs/performance.md, made of its text and of what the bench measured.

The text is docs/performance/page.md.in. There «name» stands for a figure of docs/performance/bench.json, «name ±» for it
with the least and the most of its repeats, and «name ?» for whether it met its goal. So every number of the page is of
the figure that it is said to be. `make performance` writes the page; a test holds it against the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from opentab_tools.bench.compare import Document, read_figures
from opentab_tools.bench.figures import Figure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
TEXT = ROOT / "docs" / "performance" / "page.md.in"
BENCH = ROOT / "docs" / "performance" / "bench.json"
ASKED = re.compile(r"«([^»]+?)( [±?])?»")
MET = {True: "yes", False: "**no**"}


def page(text: str, document: Document) -> str:
    """The text with its figures; one that was not measured is a KeyError."""
    figures = {figure.name: figure for figure in (*document.figures, *_minutes(document))}

    def told(asked: re.Match[str]) -> str:
        figure = figures[asked[1]]
        if asked[2] == " ?":
            assert figure.met is not None, f"{figure.name} has no goal"
            return MET[figure.met]
        return with_spread(figure) if asked[2] else value(figure)

    return ASKED.sub(told, text)


def with_spread(figure: Figure) -> str:
    """A value with the least and the most of its repeats, where it has them."""
    if figure.spread is None:
        return value(figure)
    least, most = (number(end, figure.unit) for end in figure.spread)
    return f"{value(figure)} ({least} to {most})"


def value(figure: Figure) -> str:
    """A value, with one digit more where it would look like its goal and is not."""
    text = number(figure.value, figure.unit)
    goal = None if figure.goal is None else number(float(figure.goal.lstrip("≥≤ ").replace(",", "")), figure.unit)
    return number(figure.value, figure.unit, more=1) if figure.met is False and text == goal else text


def number(value: float, unit: str, *, more: int = 0) -> str:
    """As many digits as tell something: 0.83, 24.0, 1.4 (s), 21.9 (ms), 346 (ms), 1,011,546 (events/s)."""
    digits = 0
    if unit in ("ratio", "MiB a million events"):
        digits = 2 if abs(value) < 10 else 1
    elif unit in ("s", "ms"):
        digits = 1 if abs(value) < 100 else 0
    return f"{value:,.{digits + more}f}"


def _minutes(document: Document) -> list[Figure]:
    """How long each chapter took, and all of them."""
    seconds = {name: story["seconds"] for name, story in document.machine["chapters"].items()}
    seconds["all"] = sum(seconds.values())
    return [Figure(f"{name}: minutes", taken / 60, "minutes") for name, taken in seconds.items()]


if __name__ == "__main__":
    PAGE.write_text(page(TEXT.read_text(encoding="utf-8"), read_figures(BENCH)), encoding="utf-8")
