"""A run as a picture: how old the answers were and how many there were, with the faults marked."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from pathlib import Path

from opentab_tools.chaos.play import Run
from opentab_tools.servers.required_tools import find_matplotlib

SIZE_INCHES = (14.0, 7.0)
GAP_SECONDS = 5.0
STALENESS, ANSWERED, UNANSWERED, FAULT = "#1f5fa8", "#3a7d44", "#c0392b", "#f2c14e"


def draw(run: Run, path: Path) -> None:
    """Write the picture; the form follows from the file's name."""
    find_matplotlib()
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (age, share) = plt.subplots(2, 1, sharex=True, figsize=SIZE_INCHES, height_ratios=[2, 1])
    # What nobody answered, or answered without an age, is a gap; so is the time between two stages.
    ages = [nan if read.staleness_s is None else read.staleness_s for read in run.reads]
    gaps = [later.at - read.at > GAP_SECONDS for read, later in pairwise(run.reads)]
    ages = [nan if gap else seconds for gap, seconds in zip([*gaps, False], ages, strict=True)]
    age.plot([read.at - run.began for read in run.reads], ages, color=STALENESS, linewidth=0.8)
    age.set_ylabel("age of answers, s")
    age.set_yscale("symlog", linthresh=1)
    age.set_ylim(bottom=0)
    seconds = range(int(run.seconds) + 1)
    answered, unanswered = [0] * len(seconds), [0] * len(seconds)
    for read in run.reads:
        second = min(int(read.at - run.began), len(seconds) - 1)
        if read.answered:
            answered[second] += 1
        else:
            unanswered[second] += 1
    share.stackplot(seconds, answered, unanswered, colors=[ANSWERED, UNANSWERED], labels=["answered", "not answered"])
    share.set_ylabel("reads a second")
    share.set_xlabel("seconds")
    share.legend(loc="lower right", frameon=False)
    for result in run.results:
        for number, strike in enumerate(result.strikes):
            for axes in (age, share):
                axes.axvspan(strike.struck - run.began, strike.recovered - run.began, color=FAULT, alpha=0.35, lw=0)
            if number == 0:
                where = (strike.struck - run.began, 1.01)
                age.annotate(result.fault.name, where, xycoords=("data", "axes fraction"), rotation=45, fontsize=8)
    figure.suptitle(f"opentab chaos, seed {run.seed}, {run.began_at:%Y-%m-%d}", x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
