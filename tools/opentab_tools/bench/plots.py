"""A bench's figures as pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentab_tools.bench.figures import Figure
from opentab_tools.bench.peers import ALL, OURS
from opentab_tools.servers.required_tools import find_matplotlib

COLOURS = {"opentab": "#1f5fa8", "Flink": "#c0392b", "Spark": "#3a7d44"}
OTHERS = "#777777"
WIDE = (9.0, 5.0)
CUSTOMERS = re.compile(r", ([\d,]+) customers$")


def draw_all(figures: Sequence[Figure], directory: Path) -> list[Path]:
    """Write the pictures that there are figures for; their paths."""
    find_matplotlib()
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update(
        {"svg.hashsalt": "opentab", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for draw in (_over_customers, _beside_peers, _dedupe, _closing):
        path = directory / f"{draw.__name__.removeprefix('_').replace('_', '-')}.svg"
        if draw(figures, path):
            drawn.append(path)
    return drawn


def _over_customers(figures: Sequence[Figure], path: Path) -> bool:
    """Events a second over the number of customers, a line a contender."""
    lines = {name: _by_customers(figures, f"peers: {name}") for name in ALL}
    lines = {name: found for name, found in lines.items() if len(found) > 1}
    if not lines:
        return False
    plt, picture, axes = _new()
    for name, found in sorted(lines.items(), key=lambda pair: -max(f.value for f in pair[1].values())):
        sizes = sorted(found)
        values = [found[size].value for size in sizes]
        errors = _errors([found[size] for size in sizes])
        axes.errorbar(sizes, values, yerr=errors, label=name, capsize=2, marker="o", markersize=4, **_look(name))
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("customers")
    axes.set_ylabel("events a second, warm")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False, handlelength=4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(plt, picture, path)


def _beside_peers(figures: Sequence[Figure], path: Path) -> bool:
    """Events a second with the most customers, a bar a contender."""
    found = {name: _by_customers(figures, f"peers: {name}") for name in ALL}
    most = max((size for by_size in found.values() for size in by_size), default=0)
    bars = {name: by_size[most] for name, by_size in found.items() if most in by_size}
    if not bars:
        return False
    plt, picture, axes = _new()
    names = sorted(bars, key=lambda name: bars[name].value)
    axes.barh(names, [bars[name].value for name in names], color=[_look(name)["color"] for name in names])
    for at, name in enumerate(names):
        axes.text(bars[name].value, at, f" {bars[name].value:,.0f}", va="center")
    axes.set_xlabel(f"events a second, warm, {most:,} customers")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return _save(plt, picture, path)


def _dedupe(figures: Sequence[Figure], path: Path) -> bool:
    """With dedupe to without, over repeats and ids remembered."""
    wanted = [figure for figure in figures if "with to without, " in figure.name]
    if not wanted:
        return False
    plt, picture, axes = _new()
    labels = [
        figure.name.partition("with to without, ")[2].replace(", ", "\n").replace(" ids ", "\nids ")
        for figure in wanted
    ]
    look = {"yerr": _errors(wanted), "ecolor": OTHERS, "capsize": 4}
    axes.bar(labels, [figure.value for figure in wanted], color=COLOURS["opentab"], width=0.5, **look)
    for at, figure in enumerate(wanted):
        axes.text(at, 0.02, f"{figure.value:.2f}", ha="center", va="bottom", color="white")
    axes.axhline(0.7, color=OTHERS, linestyle=":", label="goal")
    axes.set_ylim(0, 1.1)
    axes.set_ylabel("throughput with dedupe, to without")
    axes.legend(frameon=False)
    return _save(plt, picture, path)


def _errors(figures: Sequence[Figure]) -> tuple[list[float], list[float]]:
    """How far the least and the most of the repeats are from each value."""
    spreads = [figure.spread or (figure.value, figure.value) for figure in figures]
    below = [figure.value - low for figure, (low, _) in zip(figures, spreads, strict=True)]
    above = [high - figure.value for figure, (_, high) in zip(figures, spreads, strict=True)]
    return below, above


def _closing(figures: Sequence[Figure], path: Path) -> bool:
    """Time to close a month over the number of customers."""
    found = _by_customers(figures, "closing: close")
    if len(found) < 2:
        return False
    files = _by_customers(figures, "closing: close and write the files")
    plt, picture, axes = _new()
    for label, by_size, style in (("to the commit", found, "-"), ("to the last invoice file", files, "--")):
        sizes = sorted(by_size)
        axes.plot(sizes, [by_size[s].value for s in sizes], style, marker="o", color=COLOURS["opentab"], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("customers")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False)
    return _save(plt, picture, path)


def _by_customers(figures: Sequence[Figure], name: str) -> dict[int, Figure]:
    """The figures of a name, by the number of customers that it ends with."""
    found = {}
    for figure in figures:
        match = CUSTOMERS.search(figure.name)
        if match and figure.name[: match.start()] == name and figure.unit != "ratio":
            found[int(match[1].replace(",", ""))] = figure
    return found


def _look(name: str) -> dict[str, Any]:
    """A colour a maker, and another line for each of its ways."""
    maker = next((maker for maker in COLOURS if name.startswith(maker)), "")
    ways = [other for other in ALL if other.startswith(maker)]
    style = ("-", "--", ":", "-.")[ways.index(name) % 4]
    return {"color": COLOURS.get(maker, OTHERS), "linestyle": style, "linewidth": 2 if name in OURS else 1.2}


def _new() -> tuple[Any, Any, Any]:
    from matplotlib import pyplot as plt

    picture, axes = plt.subplots(figsize=WIDE)
    return plt, picture, axes


def _save(plt: Any, picture: Any, path: Path) -> bool:
    picture.tight_layout()
    picture.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(picture)
    return True
