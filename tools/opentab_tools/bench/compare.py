"""opentab bench compare: what a change did, figure by figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from opentab.core.errors import InputError
from opentab_tools.bench.figures import Figure, number

# Less is better where time, memory or room is measured.
COSTS = {"s", "ms", "MiB", "bytes", "files", "bytes a customer", "MiB a million events"}


class Document(msgspec.Struct, frozen=True):
    """What a bench wrote with --json."""

    machine: dict[str, Any]
    figures: list[Figure]


def read_figures(path: Path) -> Document:
    """Figures that a bench wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{path} does not hold the figures of a bench: {error}", hint="give a file that opentab bench --json wrote"
        ) from error


def compare(before: Sequence[Figure], after: Sequence[Figure]) -> list[tuple[str, ...]]:
    """A row for each figure: name, unit, before, after, after to before, and what that means."""
    old = {figure.name: figure for figure in before}
    new = {figure.name: figure for figure in after}
    rows = []
    for name in dict.fromkeys([*old, *new]):
        one, other = old.get(name), new.get(name)
        known = one or other
        assert known is not None
        values = ["" if figure is None else number(figure.value) for figure in (one, other)]
        if one is None or other is None:
            rows.append((name, known.unit, *values, "", "only before" if one else "only after"))
        else:
            ratio = f"{other.value / one.value:.3f}" if one.value else ""
            rows.append((name, known.unit, *values, ratio, verdict(one, other)))
    return rows


def verdict(before: Figure, after: Figure) -> str:
    """What the change is, where it is more than the spread of either side; and whether a goal was won or lost."""
    if before.met is not None and after.met is not None and before.met != after.met:
        return "meets its goal now" if after.met else "misses its goal now"
    (low, high), (least, most) = (figure.spread or (figure.value, figure.value) for figure in (before, after))
    if least <= high and low <= most:
        return "" if before.value == after.value else "within the spread"
    if before.spread is None and after.spread is None:
        return ""  # one run each tells nothing
    rose = after.value > before.value
    wanted_less = before.unit in COSTS or (before.goal or "").startswith("≤")
    return "worse" if rose == wanted_less else "better"


def machines_differ(before: Document, after: Document) -> str | None:
    """A warning where the two were not measured on the same kind of machine."""
    one, other = (
        {key: doc.machine.get(key) for key in ("cpu_count", "cpu_model", "memory_bytes")} for doc in (before, after)
    )
    if one == other:
        return None
    return "they were measured on different machines: compare the ratios only"
