"""opentab bench: everything that can be measured here, one chapter after the other, into one document.

A chapter that fails does not take the others with it: it is named at the end, and in the document.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from opentab.core.errors import InputError, OpentabError
from opentab_tools.bench.closing import SIZES, bench_closing
from opentab_tools.bench.compare import Document, machines_differ, read_figures
from opentab_tools.bench.dedupe import bench_dedupe
from opentab_tools.bench.figures import Figure, Say, write_json
from opentab_tools.bench.freshness import bench_freshness
from opentab_tools.bench.ingest import bench_ingest
from opentab_tools.bench.peers import ALL, QUICK, bench_peers
from opentab_tools.bench.reads import bench_reads
from opentab_tools.bench.recovery import bench_recovery
from opentab_tools.bench.replica import bench_replica
from opentab_tools.measuring.machine import MachineLoad, describe_machine

QUICK_EVENTS, QUICK_BATCH_EVENTS = 1_200_000, 200_000
QUICK_SIZES = (100, 300_000)
LABEL_MAX = 60  # of what a chapter says, beside the progress bar
SIZES_OF_TOPICS = (100, 1_000_000, 10_000)  # in turn; the first two are compared
TOPIC_TO_LOG = 8 / 5  # a batch of a topic takes more events, and enough of them must be behind the warm-up
INGEST_TO_LOG = 2  # taking in is so quick that what is behind the warm-up would be over in two seconds


@dataclass(frozen=True, slots=True)
class Chapter:
    """One bench of the whole."""

    name: str
    measure: Callable[..., list[Figure]]
    lines: int = 1  # it says about as many, one for each run: the progress bar steps with them


def quick_chapters() -> list[Chapter]:
    """opentab and reading alone: five minutes."""
    peers = partial(
        bench_peers,
        events=QUICK_EVENTS,
        sizes=QUICK_SIZES,
        repeats=1,
        contenders=QUICK,
        batch_events=QUICK_BATCH_EVENTS,
    )
    freshness = partial(bench_freshness, seconds=15, rate=1_000, repeats=1, warm_up=10)
    return [Chapter("peers", peers, lines=14), Chapter("freshness", freshness, lines=3)]


def all_chapters(*, events: int, repeats: int) -> list[Chapter]:
    """All there is, with all peers: two hours with the defaults."""
    peers = partial(
        bench_peers,
        events=round(TOPIC_TO_LOG * events),
        sizes=SIZES_OF_TOPICS,
        repeats=repeats,
        contenders=ALL,
    )
    reads = partial(bench_reads, customers=1_000_000, events=events, seconds=10, repeats=repeats, workers=(1, 2))
    dedupe = partial(
        bench_dedupe,
        events=events,
        remembered=(0, 10_000_000, 50_000_000),
        shares=(0.0, 0.01, 0.2),
        repeats=repeats,
        peer=True,
    )
    freshness = {
        f"freshness{load}{log}": partial(bench_freshness, seconds=60, rate=rate, kafka=bool(log), repeats=repeats)
        for load, rate in (("", 1_000), (" under load", 10_000))
        for log in ("", " from Kafka")
    }
    return [
        Chapter("peers", peers, lines=11 + 33 * repeats),
        *(Chapter(name, measure, lines=3 * repeats) for name, measure in freshness.items()),
        Chapter("reads", reads, lines=2 + 8 * repeats),
        Chapter("dedupe", dedupe, lines=4 + 17 * repeats),
        Chapter(
            "ingest", partial(bench_ingest, events=INGEST_TO_LOG * events, repeats=repeats), lines=14 + 6 * repeats
        ),
        Chapter("closing", partial(bench_closing, sizes=SIZES, repeats=repeats), lines=6 * repeats),
        Chapter("replica", partial(bench_replica, customers=1_000_000, repeats=repeats), lines=1 + repeats),
        Chapter("recovery", partial(bench_recovery, customers=100_000, repeats=repeats), lines=1 + repeats),
    ]


def bench_whole(
    chapters: Sequence[Chapter],
    *,
    json_path: Path | None,
    work_dir: Path,
    say: Say,
    advance: Callable[..., None] = lambda step, **_: None,
    kept: Document | None = None,
) -> list[Figure]:
    """Measure chapter by chapter; what is done is written at once, so that an end by force loses one chapter only.

    Of a document that is kept, the chapters that are not measured anew stay.
    """
    machine: dict[str, Any] = describe_machine() | {"chapters": {}}
    figures: list[Figure] = []
    if kept is not None:
        anew = tuple(f"{chapter.name}: " for chapter in chapters)
        figures = [figure for figure in kept.figures if not figure.name.startswith(anew)]
        machine["chapters"] |= kept.machine.get("chapters", {})
    bar_lines = sum(chapter.lines for chapter in chapters)
    for chapter in chapters:
        bar = _Bar(chapter, partial(advance, total=bar_lines))
        load = MachineLoad()
        say(f"{chapter.name}: load is {load.at_first:.2f}, the yardstick takes {load.yardstick_ms:.1f} ms")
        began = time.monotonic()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        story: dict[str, Any] = {"began_at": now}

        def tell(text: str, bar: _Bar = bar) -> None:
            say(text)
            bar.step(text)

        own = work_dir / "chapter"
        own.mkdir()
        document = work_dir / "chapter.json"
        try:
            found = chapter.measure(json_path=document, work_dir=own, say=tell)
            story |= {key: value for key, value in read_figures(document).machine.items() if key not in machine}
            figures += [replace(figure, name=f"{chapter.name}: {figure.name}") for figure in found]
        except Exception as error:  # also a bug of ours: two hours of others are not to be lost for it
            why = str(error) if isinstance(error, OpentabError) else repr(error)
            say(f"{chapter.name} failed: {why}")
            story["failed"] = why
        story |= {"seconds": round(time.monotonic() - began), **load.so_far()}
        machine["chapters"][chapter.name] = story
        shutil.rmtree(own, ignore_errors=True)
        write_json(json_path, machine, figures)
        bar.end()
    return figures


class _Bar:
    """A chapter's part of the progress bar: a step for each line that it says, the rest at its end."""

    def __init__(self, chapter: Chapter, advance: Callable[..., None]) -> None:
        self._name, self._advance, self._left = chapter.name, advance, chapter.lines
        advance(0, label=chapter.name)

    def step(self, text: str) -> None:
        step = 1 if self._left > 1 else 0  # a chapter is not done before its end, however much it says
        self._left -= step
        self._advance(step, label=f"{self._name}: {text.strip()[:LABEL_MAX]}")

    def end(self) -> None:
        self._advance(self._left)


def failed_chapters(chapters: Sequence[Chapter], figures: Sequence[Figure]) -> list[str]:
    """The names of those that no figure is of."""
    return [chapter.name for chapter in chapters if not any(f.name.startswith(f"{chapter.name}: ") for f in figures)]


def document_to_keep(path: Path) -> Document | None:
    """What a bench wrote there before, for chapters to be measured anew in it; None where there is nothing."""
    if not path.exists():
        return None
    document = read_figures(path)
    if machines_differ(document, Document(describe_machine(), [])):
        raise InputError(f"{path} was measured on another machine", hint="give --json another name")
    return document
