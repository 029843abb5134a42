"""Commands that move events on: generate, run, serve, deliver, and up and demo, which are several of them."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from opentab.cli.base import (
    DIFFERENT,
    at_home,
    at_log,
    commands,
    duration_option,
    interrupt,
    open_journal,
    own_home,
    progress_bar,
)
from opentab.cli.judge import verify_home
from opentab.core.errors import ConfigError, InputError, MachineError
from opentab.runtime import config, logs, terminal
from opentab.runtime.config import Home
from opentab.runtime.permissions import make_private

if TYPE_CHECKING:
    from opentab.billing.run import Progress
    from opentab.server.serve import Tls
    from opentab.sinks.deliver import Outlook

DEMO_BYTES_MIN = 512 * 2**20


@commands.command()
@click.option("--months", default=3, show_default=True, help="how many, the last one before the current month")
@click.option("--first-period", metavar="2026-01", help="the first month, if not the latest ones")
@click.option("--customers", default=9, show_default=True, help="9: the named ones; else c0000000 and so on")
@click.option("--events", default=10_000, show_default=True, help="about so many a customer and month")
@click.option("--seed", default=1, show_default=True, help="the same seed makes the same events")
@click.option("--month-seconds", type=float, help="live: a month lasts so long; else as fast as the disk allows")
@click.option("--late", default=0.01, show_default=True, help="share that comes after its month was closed")
@click.option("--beyond", default=0.0, show_default=True, help="share that comes after its month was final")
@click.option("--bad", default=0.0, show_default=True, help="extra lines that cannot be billed, as a share")
@click.option("--duplicates", default=0.0, show_default=True, help="events with an id that come twice, as a share")
@click.option("--conflicts", default=0.0, show_default=True, help="ids that come again with another amount, as a share")
@click.option("--ids", default=0.8, show_default=True, help="share of events that have an id")
@click.option("--cloudevents", default=0.0, show_default=True, help="share in CloudEvents envelopes")
@click.option("--variety", default=0.02, show_default=True, help="share in other shapes of time and amount")
@click.option("--sources", default=1, show_default=True, help="log partitions to spread the customers over")
@click.option("--lag", metavar="30m", help="the last source comes later by this much")
@click.option("--silence", metavar="10d", help="the first source is silent so long in mid-month")
@click.option("--until-final", is_flag=True, help="let time pass behind the last month, until all of it is final")
@click.option("--out", type=click.File("wb"), metavar="FILE", help="write JSON lines there instead of the log")
@at_home
@at_log
def generate(home: Home, out: BinaryIO | None, **options: Any) -> None:
    """The simulated telecom: events whose monthly bill per customer is known beforehand."""
    from opentab.simulator.generator import Plan, write_lines
    from opentab.simulator.generator import generate as write_log

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    plan = Plan(
        seed=options["seed"],
        customers=options["customers"],
        events_per_customer=options["events"],
        months=options["months"],
        first_period=options["first_period"],
        month_seconds=options["month_seconds"],
        sources=options["sources"],
        id_share=options["ids"],
        late_share=options["late"],
        beyond_share=options["beyond"],
        duplicate_share=options["duplicates"],
        conflict_share=options["conflicts"],
        bad_share=options["bad"],
        cloudevents_share=options["cloudevents"],
        variety_share=options["variety"],
        lag=duration_option("--lag", options["lag"]),
        silence=duration_option("--silence", options["silence"]),
        until_final=options["until_final"],
    )
    with progress_bar(0, "generating", always=True) as advance:
        seen = 0

        def progress(done: int, total: int, at: datetime) -> None:
            nonlocal seen
            advance(done - seen, total=total, label=f"{at:%Y-%m-%d}")
            seen = done

        expected_path = home.expected_path
        if out is None or out.name == "<stdout>":
            make_private(home.path)
        if out is None:
            outcome = write_log(plan, home, stop=lambda: stopping, progress=progress)
        else:
            expected_path = home.expected_path if out.name == "<stdout>" else Path(f"{out.name}.expected")
            outcome = write_lines(
                plan, home, out, expected_path=expected_path, stop=lambda: stopping, progress=progress
            )
    periods = f"{outcome.periods[0]} to {outcome.periods[-1]}"
    sys.stderr.write(f"{outcome.line_count:,} lines for {periods}; expected bills in {expected_path}\n")
    if not outcome.finished:
        raise InputError("stopped before all events were written", hint="the expected bills are those of all events")


@commands.command()
@click.option("--once", is_flag=True, help="take all that is in the log and stop")
@click.option("--take-over", is_flag=True, help="start in spite of another pipeline's lock, and fence it")
@click.option("--accept-loss", is_flag=True, help="go on without the events that a Kafka topic has lost")
@click.option(
    "--standby", is_flag=True, help="wait with Spark up, and take over when the running pipeline falls silent"
)
@at_home
@at_log
def run(home: Home, once: bool, take_over: bool, accept_loss: bool, standby: bool) -> None:
    """The pipeline: from the log into the journal, on Spark."""
    from opentab.billing.run import Pipeline
    from opentab.billing.standby import Standby
    from opentab.runtime.memory import keep_memory

    if standby and (once or take_over or accept_loss):
        raise InputError("--standby goes with no other option", hint="start the other pipeline without it")
    own_home(home)
    logs.set_up(home, "pipeline")
    keep_memory()
    line = terminal.LiveLine()
    watch = _Watch(line)
    pipeline: Pipeline | Standby = (
        Standby(home, watch=watch.show, say=line.say)
        if standby
        else Pipeline(home, once=once, take_over=take_over, accept_loss=accept_loss, watch=watch.show, say=line.say)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: pipeline.stop())
    line.show("starting Spark …", time.monotonic())
    try:
        progress = pipeline.run()
    finally:
        line.close()
    sys.stderr.write((_run_summary(progress) if progress else "stood by; nothing was billed") + "\n")


class _Watch:
    """Turns the pipeline's progress into the live line."""

    def __init__(self, line: terminal.LiveLine) -> None:
        self._line = line
        self._events = 0
        self._at = time.monotonic()
        self._rate = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._at > 0:
            rate = (progress.events - self._events) / (now - self._at)
            self._rate = rate if self._rate == 0 else 0.7 * self._rate + 0.3 * rate
        self._events, self._at = progress.events, now
        self._line.show(describe(progress, self._rate), now)


def describe(progress: Progress, rate: float) -> str:
    """The pipeline's state in one line."""
    from opentab.core.periods import format_us

    record = progress.record
    if record is None:
        return f"WAITING: {progress.trouble.fact}" if progress.trouble else "no batches yet"
    watermark = format_us(record.watermark_us) or "none"
    behind = f"{progress.unread:,} {progress.unit} behind" if progress.unread else "caught up"
    return (
        f"batch {record.batch:,}  {rate:,.0f} events/s  watermark {watermark[:16]}  "
        f"{progress.rejections:,} rejected  {behind}"
        + (f"  {terminal.plural(progress.invoices, 'invoice')}" if progress.invoices else "")
        + (f"  WAITING: {progress.trouble}" if progress.trouble else "")
    )


def _run_summary(progress: Progress) -> str:
    position = progress.record.batch if progress.record else 0
    invoices = f"; {terminal.plural(progress.invoices, 'invoice')} issued" if progress.invoices else ""
    if progress.batches == 0:
        return f"nothing new in the log; position {position:,}{invoices}"
    rejected = "; opentab rejections shows what was rejected" if progress.rejections else ""
    return (
        f"{terminal.plural(progress.events, 'event')} and {terminal.plural(progress.rejections, 'rejection')} in "
        f"{terminal.plural(progress.batches, 'batch', 'batches')}; position {position:,}{invoices}{rejected}"
    )


@commands.command()
@click.option("--months", default=3, show_default=True)
@click.option("--month-seconds", default=30.0, show_default=True, help="how long a simulated month lasts")
@click.option("--events", default=10_000, show_default=True, help="about so many a customer and month")
@click.option("--seed", default=1, show_default=True)
@click.option("--port", default=8080, show_default=True, help="where the page is")
@click.option("--home", "home_dir", metavar="DIR", help="a new directory; else one below the temporary ones")
def demo(port: int, home_dir: str | None, **options: Any) -> int:
    """Everything at once, live: three simulated months, the page, and the audit's verdict.

    On a terminal it goes on serving the page until Ctrl-C.
    """
    import tempfile

    from opentab.runtime.java import find_java
    from opentab.server.serve import check_free
    from opentab.simulator.demo import staged, stay
    from opentab.simulator.screen import compare_bills, watch

    find_java()
    check_free("127.0.0.1", port)
    path = Path(home_dir) if home_dir else Path(tempfile.mkdtemp(prefix="opentab-demo-"))
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} is not empty", hint="give --home a new directory")
    make_private(path)
    free = shutil.disk_usage(path).free
    if free < DEMO_BYTES_MIN:
        raise MachineError(
            f"{path} has {free >> 20:,} MiB of room", hint=f"the demo needs {DEMO_BYTES_MIN >> 20:,} MiB"
        )
    signal.signal(signal.SIGTERM, interrupt)
    home = config.load(path)
    with staged(home, port=port) as stage:
        watch(stage, **options)
        terminal.write()
        code = verify_home(home, expected=True)
        code = code if compare_bills(home) else DIFFERENT
        terminal.write(f"Look around: opentab invoices --home {path}, or periods, totals, trace, sql")
        if sys.stdout.isatty():
            stay(stage, terminal.write)
    return code


@commands.command()
@click.option("--host", metavar="ADDRESS", help="where to listen [server.host]")
@click.option("--port", type=int, help="where to listen [server.port]")
@click.option("--workers", type=int, help="HTTP processes [server.workers]")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="certificate chain, PEM [server.tls_cert]")
@click.option("--tls-key", type=click.Path(path_type=Path), help="its private key, PEM [server.tls_key]")
@at_home
@at_log
def serve(
    home: Home, host: str | None, port: int | None, workers: int | None, tls_cert: Path | None, tls_key: Path | None
) -> None:
    """A replica and its HTTP server: live answers, also while the pipeline is down."""
    from opentab.server.serve import serve as listen

    own_home(home)
    logs.set_up(home, "server")
    listen(
        home,
        host=host or home["server.host"],
        port=home["server.port"] if port is None else port,
        workers=workers or home["server.workers"],
        tls=_tls(home, tls_cert, tls_key),
        say=lambda text: terminal.write(text, sys.stderr),
    )


def _tls(home: Home, cert: Path | None, key: Path | None) -> Tls | None:
    from opentab.server.serve import Tls

    cert = cert or (home.path / home["server.tls_cert"] if home["server.tls_cert"] else None)
    key = key or (home.path / home["server.tls_key"] if home["server.tls_key"] else None)
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("a certificate needs its key and a key its certificate", hint="give --tls-cert and --tls-key")
    return Tls(cert, key)


@commands.command()
@click.option("--once", is_flag=True, help="deliver all that there is and stop")
@click.option("--patience", default="1m", show_default=True, help="with --once: how long to go on without a success")
@at_home
def deliver(home: Home, once: bool, patience: str) -> None:
    """Put every revision of every invoice to [invoices] http_url, until it has it."""
    from opentab.sinks.deliver import deliver as send

    line = terminal.LiveLine()

    def watch(outlook: Outlook) -> None:
        line.show(_describe_backlog(outlook), time.monotonic())

    open_journal(home)
    logs.set_up(home, "deliverer")
    try:
        backlog = send(
            home, once=once, patience=duration_option("--patience", patience), say=terminal.complain, watch=watch
        )
    finally:
        line.close()
    terminal.write(f"{backlog.delivered:,} delivered in all, {backlog.waiting:,} waiting", sys.stderr)


def _describe_backlog(outlook: Outlook) -> str:
    """The deliverer's state in one line."""
    backlog = outlook.backlog
    return (
        f"{backlog.delivered:,} delivered  {backlog.waiting:,} waiting"
        + (f"  {backlog.stuck:,} refused" if backlog.stuck else "")
        + (f"  {'GONE' if backlog.gone else 'last error'}: {backlog.error}" if backlog.error else "")
        + (f"  WAITING: {outlook.trouble.fact}" if outlook.trouble else "")
    )


@commands.command()
@click.option(
    "--without", multiple=True, type=click.Choice(["run", "serve", "deliver"]), help="not this; may be repeated"
)
@click.option("--hung-after", default="60s", show_default=True, help="without a sign of life, kill and start again")
@at_home
def up(home: Home, without: tuple[str, ...], hung_after: str) -> None:
    """Pipeline, server and invoice sink of a home, started again when they die, stopped together."""
    from opentab.cli.supervisor import PARTS, supervise

    own_home(home)
    logs.set_up(home, "supervisor")
    wanted = [name for name in PARTS if name not in without and (name != "deliver" or home["invoices.http_url"])]
    patience = duration_option("--hung-after", hung_after)
    if "serve" in wanted:
        scheme = "https" if home["server.tls_cert"] else "http"
        terminal.write(f"the page will be at {scheme}://{home['server.host']}:{home['server.port']}/", sys.stderr)
    supervise(home, wanted, hung_after=patience, say=lambda text: terminal.write(text, sys.stderr))
