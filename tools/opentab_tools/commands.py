"""opentab bench and opentab chaos, thin. They come with a checkout of the source, not with the wheel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opentab.cli.base import CUSTOMERS, DIFFERENT, OK, SOME, interrupt, progress_bar
from opentab.core.errors import InputError, OpentabError
from opentab.runtime import terminal

if TYPE_CHECKING:
    from opentab_tools.bench.figures import Figure


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="this fault, and others that are named so; else all")
@click.option("--short", is_flag=True, help="every fault once, quickly")
@click.option("--minutes", default=0.0, show_default=True, help="go on with faults at random until so long has passed")
@click.option("--seed", type=click.IntRange(min=0), help="the same seed draws the same; else one is drawn, and printed")
@click.option("--json", "json_", type=click.Path(path_type=Path), metavar="FILE", help="write what was measured there")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="write chaos.md and chaos.png there")
def chaos(only: tuple[str, ...], seed: int | None, **options: Any) -> int:
    """Break everything for real, one thing after the other with load on, and show that the bill still adds up."""
    from opentab_tools.chaos.command import run_chaos

    signal.signal(signal.SIGTERM, interrupt)
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    return OK if run_chaos(only, seed=seed, **options) else DIFFERENT


def figures_to(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a bench the option --json."""
    file = click.Path(path_type=Path)
    return click.option("--json", "json_path", type=file, metavar="FILE", help="write the figures there too")(command)


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="opentab and reading alone, in five minutes")
@click.option(
    "--events",
    default=5_000_000,
    show_default=True,
    type=SOME,
    help="in each log; in a topic 8 for 5 of them, and twice as many where taking in is measured",
)
@click.option("--repeats", default=2, show_default=True, type=SOME, help="of each run, in turn")
@click.option("--chapter", "chosen", multiple=True, help="only this one; again for more")
@click.option("--plots", "plots_path", type=click.Path(path_type=Path), metavar="DIR", help="draw the figures there")
@figures_to
@click.pass_context
def bench(
    context: click.Context,
    quick: bool,
    events: int,
    repeats: int,
    chosen: tuple[str, ...],
    plots_path: Path | None,
    json_path: Path | None,
) -> None:
    """Measure opentab on this machine, and what people would use instead: all of it, or one of the commands below."""
    if context.invoked_subcommand is not None:
        return
    from opentab_tools.bench.plots import draw_all
    from opentab_tools.bench.whole import all_chapters, bench_whole, document_to_keep, failed_chapters, quick_chapters
    from opentab_tools.servers.required_tools import find_matplotlib

    if plots_path is not None:
        find_matplotlib()
    chapters = quick_chapters() if quick else all_chapters(events=events, repeats=repeats)
    names = [chapter.name for chapter in chapters]
    for name in chosen:
        if name not in names:
            raise click.BadParameter(f"{name} is none of: {', '.join(names)}", param_hint="--chapter")
    chapters = [chapter for chapter in chapters if not chosen or chapter.name in chosen]
    kept = document_to_keep(json_path) if chosen and json_path is not None else None
    with progress_bar(len(chapters), "bench", always=True) as advance:
        figures = _print_figures(bench_whole, chapters=chapters, json_path=json_path, advance=advance, kept=kept)
    if plots_path is not None:
        for path in draw_all(figures, plots_path):
            terminal.write(f"drawn: {path}", sys.stderr)
    if failed := failed_chapters(chapters, figures):
        raise OpentabError(f"not all was measured: {', '.join(failed)}", hint="why stands above, and in the document")


@bench.command("compare")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
def bench_compare_command(before: Path, after: Path) -> None:
    """What a change did: the figures of two benches, written by --json, side by side."""
    from opentab_tools.bench.compare import compare, machines_differ, read_figures

    one, other = read_figures(before), read_figures(after)
    warning = machines_differ(one, other)
    if warning is not None:
        terminal.write(f"opentab: {warning}", sys.stderr)
    columns = ("figure", "unit", "before", "after", "ratio", "")
    terminal.print_table(columns, compare(one.figures, other.figures), right=("before", "after", "ratio"))


@bench.command("peers")
@click.option("--events", default=10_000_000, show_default=True, type=SOME, help="in each topic")
@click.option("--customers", "sizes", multiple=True, type=int, help="how many; again for more [100, 10000, 1000000]")
@click.option("--repeats", default=2, show_default=True, type=SOME, help="of each turn")
@click.option("--quick", is_flag=True, help="opentab and reading alone")
@click.option("--contender", "wanted", multiple=True, help="only this one; again for more; an unknown one lists them")
@figures_to
def bench_peers_command(sizes: tuple[int, ...], quick: bool, wanted: tuple[str, ...], **options: Any) -> None:
    """Throughput beside reading alone, Spark's aggregation, Spark to Redis and Flink, from one Kafka topic."""
    from opentab_tools.bench.peers import ALL, QUICK, bench_peers
    from opentab_tools.bench.whole import SIZES_OF_TOPICS

    if unknown := sorted(set(wanted) - set(ALL)):
        raise InputError(f"there is no contender {unknown[0]!r}", hint=f"choose from: {'; '.join(ALL)}")
    contenders = [name for name in ALL if name in wanted] or (QUICK if quick else ALL)
    _print_figures(bench_peers, sizes=sizes or SIZES_OF_TOPICS, contenders=contenders, **options)


@bench.command("recovery")
@click.option("--customers", default=100_000, show_default=True, type=CUSTOMERS, help="in the ledger")
@click.option("--repeats", default=3, show_default=True, type=SOME, help="kills")
@figures_to
def bench_recovery_command(**options: Any) -> None:
    """Time from a SIGKILL of the pipeline to its next commit, and of a server to its answers."""
    from opentab_tools.bench.recovery import bench_recovery

    _print_figures(bench_recovery, **options)


def _print_figures(measure: Callable[..., list[Figure]], **options: Any) -> list[Figure]:
    """Run a bench in a directory of its own, and print what it measured."""
    import tempfile

    from opentab_tools.bench.figures import render

    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryDirectory(prefix="opentab-bench-") as work_dir:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = work_dir  # what the measured commands leave behind goes with it
        try:
            figures = measure(work_dir=Path(work_dir), say=lambda text: terminal.write(text, sys.stderr), **options)
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
    terminal.write(render(figures))
    return figures


@bench.command("ingest")
@click.option(
    "--events", default=5_000_000, show_default=True, help="in each log, with 100, 10,000 and 1,000,000 customers"
)
@click.option("--repeats", default=3, show_default=True, help="runs of each size, in turn")
@click.option("--batches", default=10_000, show_default=True, help="commits in the oldest ledger")
@figures_to
def bench_ingest_command(events: int, repeats: int, batches: int, json_path: Path | None) -> None:
    """Throughput of run --once, its start and memory, and what age does to the ledger."""
    from opentab_tools.bench.ingest import bench_ingest

    _print_figures(bench_ingest, events=events, repeats=repeats, old_batches=batches, json_path=json_path)


@bench.command("closing")
@click.option("--customers", "sizes", multiple=True, type=int, help="how many; again for more [1000, 100000, 1000000]")
@click.option("--repeats", default=2, show_default=True, type=SOME, help="of each size, in turn")
@figures_to
def bench_closing_command(sizes: tuple[int, ...], **options: Any) -> None:
    """Time to close a month, and what the stream notices of it."""
    from opentab_tools.bench.closing import SIZES, bench_closing

    _print_figures(bench_closing, sizes=tuple(sorted(sizes)) or SIZES, **options)


@bench.command("reads")
@click.option("--customers", default=1_000_000, show_default=True, type=CUSTOMERS, help="to be read at random")
@click.option("--events", default=5_000_000, show_default=True, type=SOME, help="to be ingested beside the reads")
@click.option("--seconds", default=10, show_default=True, type=SOME, help="of a load while nothing else runs")
@click.option("--repeats", default=3, show_default=True, type=SOME, help="of each load, in turn")
@click.option("--workers", multiple=True, type=SOME, help="HTTP processes; again for more [1, 2]")
@figures_to
def bench_reads_command(workers: tuple[int, ...], **options: Any) -> None:
    """Reads of customers over HTTP beside Redis, idle and while the pipeline ingests."""
    from opentab_tools.bench.reads import bench_reads

    _print_figures(bench_reads, workers=tuple(sorted(set(workers))) or (1, 2), **options)


@bench.command("dedupe")
@click.option("--events", default=5_000_000, show_default=True, type=SOME, help="with an id each")
@click.option("--remembered", multiple=True, type=int, help="ids known before; again for more [0, 10000000, 50000000]")
@click.option(
    "--share", "shares", multiple=True, type=float, help="of events that come twice; again for more [0, 0.01, 0.2]"
)
@click.option("--repeats", default=3, show_default=True, type=SOME, help="of each pair of runs")
@click.option("--peer/--no-peer", default=True, show_default=True, help="measure Spark's own operator, too")
@figures_to
def bench_dedupe_command(remembered: tuple[int, ...], shares: tuple[float, ...], **options: Any) -> None:
    """What counting every event once costs, beside letting all count, and beside Spark's own way."""
    from opentab_tools.bench.dedupe import bench_dedupe

    known = tuple(sorted(remembered)) or (0, 10_000_000, 50_000_000)
    _print_figures(bench_dedupe, remembered=known, shares=tuple(sorted(shares)) or (0.0, 0.01, 0.2), **options)


@bench.command("freshness")
@click.option("--seconds", default=60, show_default=True, type=SOME, help="to measure, after the warm-up")
@click.option("--warm-up", default=60, show_default=True, type=SOME, help="seconds of load that do not count")
@click.option("--kafka", is_flag=True, help="from a Kafka topic, not from the embedded log")
@click.option("--rate", default=1_000, show_default=True, type=SOME, help="events a second that are sent")
@click.option("--repeats", default=2, show_default=True, type=SOME, help="runs, each on a home of its own")
@figures_to
def bench_freshness_command(**options: Any) -> None:
    """Time from an event that was accepted over HTTP to the answer that shows it."""
    from opentab_tools.bench.freshness import bench_freshness

    _print_figures(bench_freshness, **options)


@bench.command("replica")
@click.option("--customers", default=1_000_000, show_default=True, type=CUSTOMERS, help="in the ledger")
@click.option("--repeats", default=3, show_default=True, type=SOME, help="of each way, in turn")
@figures_to
def bench_replica_command(**options: Any) -> None:
    """Time to make a replica, from the balances and without them, and what it weighs."""
    from opentab_tools.bench.replica import bench_replica

    _print_figures(bench_replica, **options)
