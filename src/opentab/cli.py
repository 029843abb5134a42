"""The commands, thin: each reads its options, calls one thing, and prints what came of it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from opentab import __version__, config, terminal
from opentab.config import Home
from opentab.disk import make_directories, write_new
from opentab.errors import ConfigError, DiskFull, InputError, LedgerError, MachineError, OpentabError, means_disk_full

if TYPE_CHECKING:
    from opentab.audit.check import Check
    from opentab.billing.run import Progress
    from opentab.lab.figures import Figure
    from opentab.ledger.invoices import Invoices
    from opentab.ledger.journal import Journal
    from opentab.server.serve import Tls
    from opentab.sinks.deliver import Outlook

FORMATS = click.Choice(["table", "csv", "json"])
SOME = click.IntRange(min=1)
CUSTOMERS = click.IntRange(min=10)  # nine have names of their own
OK, DIFFERENT = 0, 1
INTERRUPTED = 130
OUR_BUG = 70
BAR_BYTES_MIN = 16 * 2**20
DEMO_BYTES_MIN = 512 * 2**20
FILES = "files"  # what `verify` calls the invoice files
FILES_SHOWN_MAX = 20


def main() -> None:
    """Run a command; whatever happens, the user reads a sentence and a script gets an exit code."""
    try:
        code = commands(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else OK)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OpentabError as error:
        terminal.complain(error.fact + (f"\n         {error.hint}" if error.hint else ""))
        sys.exit(error.exit_code)
    except OSError as error:
        if means_disk_full(error):
            terminal.complain(str(DiskFull(str(error.filename or "the home"))))
            sys.exit(DiskFull.exit_code)
        if not isinstance(error, BrokenPipeError):
            terminal.complain(f"{error.filename or 'the system'}: {error.strerror or error}")
            sys.exit(OpentabError.exit_code)
        # The reader of our output went away, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    except Exception as error:
        terminal.complain(_bug_report(error))
        sys.exit(OUR_BUG)


def _bug_report(error: Exception) -> str:
    path = Path(f"opentab-bug-{os.getpid()}.txt")
    fact = f"this is a bug in opentab: {type(error).__name__}: {(str(error) or '-').splitlines()[0][:200]}"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return fact
    return f"{fact}\n         {path} says where; please report it"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="opentab")
def commands() -> None:
    """opentab: a tab you can read while it is still open."""


def at_home(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option --home and, as its first argument, the home itself."""

    @click.option("--home", "home_dir", metavar="DIR", help="the deployment [OPENTAB_HOME, ./opentab-home]")
    @wraps(command)
    def with_home(*args: Any, home_dir: str | None, **options: Any) -> Any:
        home = config.load(config.home_path(home_dir))
        try:
            return command(home, *args, **options)
        except Exception as error:
            if isinstance(error, OpentabError | click.ClickException):
                raise
            from opentab.ledger.trouble import reading  # slow to load, and most commands need it only here

            with reading(home.ledger):
                raise

    return with_home


def at_log(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let the option --log name another log than the home's settings do."""

    @click.option("--log", "log_uri", metavar="URI", help="the log, in place of log.uri")
    @wraps(command)
    def with_log(home: Home, *args: Any, log_uri: str | None, **options: Any) -> Any:
        return command(home if log_uri is None else home.with_setting("log.uri", log_uri), *args, **options)

    return with_log


@commands.command()
@at_home
def init(home: Home) -> None:
    """Write opentab.toml with every setting, its default and a comment."""
    file = home.path / config.FILE_NAME
    if file.exists():
        raise InputError(f"{file} is there already", hint="edit it, or remove it first")
    make_directories(home.path)
    write_new(file, config.template().encode())
    terminal.write(f"wrote {file}")


@commands.command()
@click.option("--repair", is_flag=True, help="first make the ledger whole again, as far as its files allow")
@at_home
def doctor(home: Home, repair: bool) -> int:
    """Say what is missing on this machine, and how to get it; and why batches are slow or late."""
    from opentab.doctor import examine, repair_ledger

    for sentence in repair_ledger(home) if repair else ():
        terminal.write(f"{terminal.paint('repaired', terminal.GREEN)} {sentence}")
    findings = examine(home)
    for finding in findings:
        mark = terminal.paint("ok     ", terminal.GREEN) if finding.ok else terminal.paint("MISSING", terminal.RED)
        mark = terminal.paint("SLOW   ", terminal.YELLOW) if finding.is_slow else mark
        terminal.write(f"{mark}  {finding.name:<8}  {finding.fact}")
        if finding.fix:
            terminal.write(f"                   {finding.fix}")
    return OK if all(finding.ok for finding in findings) else 3


@commands.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--partition", metavar="NAME", help='of the log ["default"; on Kafka the customer decides]')
@at_home
@at_log
def ingest(home: Home, files: tuple[Path, ...], partition: str | None) -> None:
    """Put JSON lines into the log: FILES, or standard input. Returns once they are durable."""
    from opentab.billing.log_check import open_checked_producer
    from opentab.log.ingest import file_chunks, stream_chunks
    from opentab.log.ingest import ingest as append

    for file in files:
        if str(file) != "-" and not os.access(file, os.R_OK):
            raise InputError(f"{file} cannot be read", hint="nothing was ingested")
        if file.is_dir():
            raise InputError(f"{file} is a directory", hint="name the files in it; nothing was ingested")
    producer = open_checked_producer(home, partition)
    lines_max = home["pipeline.batch_events_max"]
    total = 0
    for file in files or (Path("-"),):
        if str(file) == "-":
            total += append(stream_chunks(sys.stdin.buffer), producer, lines_max=lines_max)
            continue
        with file.open("rb") as handle, _bar(file.stat().st_size, str(file)) as advance:
            total += append(file_chunks(handle), producer, lines_max=lines_max, progress=lambda _, size: advance(size))
    sys.stderr.write(f"{total:,} lines are in the log, partition {producer.partition}\n")


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
    from opentab.lab.generator import Plan, write_lines
    from opentab.lab.generator import generate as write_log

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
        lag=_duration_option("--lag", options["lag"]),
        silence=_duration_option("--silence", options["silence"]),
        until_final=options["until_final"],
    )
    with _bar(0, "generating", always=True) as advance:
        seen = 0

        def progress(done: int, total: int, at: datetime) -> None:
            nonlocal seen
            advance(done - seen, total=total, label=f"{at:%Y-%m-%d}")
            seen = done

        expected_path = home.expected_path
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


def _duration_option(name: str, text: str | None) -> timedelta:
    try:
        return config.parse_duration(text) if text else timedelta()
    except ValueError:
        raise InputError(f"{name} {text!r} is no duration", hint="for example 30m, 12h or 10d") from None


@commands.command()
@click.option("--once", is_flag=True, help="take all that is in the log and stop")
@click.option("--take-over", is_flag=True, help="start in spite of another pipeline's lock, and fence it")
@click.option("--accept-loss", is_flag=True, help="go on without the events that a Kafka topic has lost")
@at_home
@at_log
def run(home: Home, once: bool, take_over: bool, accept_loss: bool) -> None:
    """The pipeline: from the log into the journal, on Spark."""
    from opentab.billing.run import Pipeline
    from opentab.memory import keep_memory

    keep_memory()
    line = terminal.LiveLine()
    watch = _Watch(line)
    pipeline = Pipeline(home, once=once, take_over=take_over, accept_loss=accept_loss, watch=watch.show, say=line.say)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: pipeline.stop())
    line.show("starting Spark …", time.monotonic())
    try:
        progress = pipeline.run()
    finally:
        line.close()
    sys.stderr.write(_run_summary(progress) + "\n")


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
    from opentab.periods import format_us

    record = progress.record
    if record is None:
        return f"WAITING: {progress.trouble.fact}" if progress.trouble else "no batches yet"
    watermark = format_us(record.watermark_us) or "none"
    behind = f"{progress.unread:,} {progress.unit} behind" if progress.unread else "caught up"
    return (
        f"batch {record.batch:,}  {rate:,.0f} events/s  watermark {watermark[:16]}  "
        f"{progress.rejections:,} rejected  {behind}"
        + (f"  {progress.invoices:,} invoices" if progress.invoices else "")
        + (f"  WAITING: {progress.trouble}" if progress.trouble else "")
    )


def _run_summary(progress: Progress) -> str:
    position = progress.record.batch if progress.record else 0
    invoices = f"; {progress.invoices:,} invoices issued" if progress.invoices else ""
    if progress.batches == 0:
        return f"nothing new in the log; position {position:,}{invoices}"
    return (
        f"{progress.events:,} events and {progress.rejections:,} rejections in {progress.batches:,} "
        f"batches; position {position:,}{invoices}"
    )


@commands.command()
@click.option("--period", metavar="2026-01", help="this period only")
@click.option("--customer", metavar="NAME", help="this customer only")
@click.option("--from", "first_day", metavar="2026-01-10", help="by the events' own days, from this one on")
@click.option("--to", "last_day", metavar="2026-01-20", help="and up to this one, itself included")
@click.option("--by", type=click.Choice(["customer", "type"]), default="customer", show_default=True)
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def totals(
    home: Home,
    period: str | None,
    customer: str | None,
    first_day: str | None,
    last_day: str | None,
    by: str,
    format_: str,
) -> None:
    """Running totals by customer or by type, of periods or of a range of days."""
    from opentab.periods import parse_day, parse_period
    from opentab.views import totals as views

    if by == "type" and customer is not None:
        raise InputError("--customer goes with totals by customer only", hint="leave out --by type")
    journal = open_journal(home)
    if first_day is not None or last_day is not None:
        if period is not None:
            raise InputError("--period and a range of days exclude each other", hint="leave one of them out")
        days = parse_day(first_day or "0001-01-01"), parse_day(last_day or "9999-12-31")
        views.print_range(home, journal, days, customer, by=by, format_=format_)
        return
    if period is not None:
        parse_period(period)
    if by == "type":
        views.print_by_type(home, journal, period, format_)
    else:
        views.print_by_customer(home, journal, period, customer, format_)


@commands.command()
@click.option("--period", metavar="2026-01", help="this period only")
@click.option("--customer", metavar="NAME", help="this customer only")
@click.option("--all-revisions", is_flag=True, help="every revision, not only the latest of each")
@click.option("--preview", is_flag=True, help="what would be issued for the period right now, and what is still open")
@click.option("--export", is_flag=True, help="write the invoice files that are missing, and print nothing else")
@click.option(
    "--format", "format_", type=click.Choice(["table", "csv", "json", "text"]), default="table", show_default=True
)
@at_home
def invoices(
    home: Home,
    period: str | None,
    customer: str | None,
    all_revisions: bool,
    preview: bool,
    export: bool,
    format_: str,
) -> None:
    """Invoices: the latest revision of each customer and period."""
    from opentab.periods import parse_period
    from opentab.views import invoices as views

    open_journal(home)

    if period is not None:
        parse_period(period)
    if export:
        if preview or period or customer or all_revisions or format_ != "table":
            raise InputError("--export goes alone: it writes all files that are missing")
        views.export_files(home)
    elif preview:
        if period is None or all_revisions:
            raise InputError("a preview is of one period", hint="opentab invoices --preview --period 2026-01")
        views.print_preview(home, open_journal_now(home), period, customer, format_)
    else:
        views.print_invoices(home, period, customer, all_revisions=all_revisions, format_=format_)


@commands.command()
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def periods(home: Home, format_: str) -> None:
    """Every period: open, closed or final, what it comes to, and what is missing for the next step."""
    from opentab.views.invoices import print_periods

    print_periods(home, open_journal(home), format_)


@commands.command()
@click.option("--reason", metavar="R", help="this reason only")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="write the raw lines, to mend and ingest again",
)
@at_home
def rejections(home: Home, reason: str | None, format_: str, export: Path | None) -> None:
    """Inputs that could not be billed, with the reason and their place in the log."""
    from opentab.ledger.rejections import reason_counts, rejection_as_json, rejection_rows
    from opentab.ledger.totals import place_of

    if reason is not None:
        from opentab.events import Reason

        if reason not in list(Reason):
            raise InputError(f"{reason!r} is no reason", hint=f"there are: {', '.join(Reason)}")
    journal = open_journal(home)
    rows = rejection_rows(journal, reason=reason)
    if export is not None:
        count = 0
        with export.open("wb") as file:
            for row in rows:
                file.write(row["raw"] + b"\n")
                count += 1
        sys.stderr.write(f"{count:,} lines written to {export}\n")
        return
    if format_ == "json":
        terminal.print_json(map(rejection_as_json, rows))
        return
    columns = ["batch", "reason", "place", "raw", "detail"]
    if format_ == "csv":
        terminal.print_csv(columns, ([rejection_as_json(row)[c] for c in columns] for row in rows))
        return
    terminal.print_table(columns, ([_shortened(row[c]) for c in columns] for row in rows), right=["batch"])
    counts = ", ".join(f"{name} {count:,}" for name, count in reason_counts(journal, reason=reason))
    terminal.write(terminal.paint(f"{counts or 'none'}; position {place_of(journal).position}", terminal.DIM))


def _shortened(value: Any) -> str:
    text = terminal.printable(value)
    return text if len(text) <= 60 else text[:59] + "…"


@commands.command()
@click.argument("event_id", metavar="ID")
@click.option("--source", metavar="S", help="of the CloudEvents envelope that it came in")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
@at_home
@at_log
def receipt(home: Home, event_id: str, source: str | None, format_: str) -> int:
    """What became of an event: counted, in which batch, period and invoice; or rejected, and why."""
    from opentab.views.receipt import find_receipt, receipt_rows

    journal = open_journal(home)
    found = find_receipt(home, journal, event_id, source)
    if found is None:
        terminal.complain(f"no event with the id {terminal.printable(event_id)!r} is known within the dedupe window")
        return DIFFERENT
    if format_ == "json":
        terminal.print_json([{**found.as_json(), "position": journal.position if journal else 0}])
        return OK
    terminal.print_table(["fact", "value"], receipt_rows(found, home["billing.currency"]))
    return OK


@commands.command()
@click.option("-n", "--lines", default=10, show_default=True, help="begin with so many earlier lines")
@click.option("--follow/--no-follow", default=True, show_default=True, help="go on as events arrive")
@click.option("--raw", is_flag=True, help="the bytes as they came")
@at_home
@at_log
def tail(home: Home, lines: int, follow: bool, raw: bool) -> None:
    """The events as readable lines, as they arrive."""
    from opentab.tail import follow_log, readable

    for line in follow_log(home, lines=lines, follow=follow):
        if raw:
            sys.stdout.buffer.write(line.raw + b"\n")
            sys.stdout.buffer.flush()
        else:
            terminal.write(readable(line, home))
            sys.stdout.flush()


@commands.command()
@click.argument("query")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def sql(home: Home, query: str, format_: str) -> None:
    """Ad-hoc SQL over the ledger: the views entries, rejections, batches, balances and invoices."""
    from opentab.ledger.adhoc import run_query

    columns, rows = run_query(home, open_journal(home), query)
    if format_ == "json":
        terminal.print_json(dict(zip(columns, row, strict=True)) for row in rows)
    elif format_ == "csv":
        terminal.print_csv(columns, rows)
    else:
        kept = list(rows)
        numbers = [c for i, c in enumerate(columns) if kept and isinstance(kept[0][i], int | float)]
        terminal.print_table(columns, kept, right=numbers)


@commands.command()
@click.option(
    "--expected/--no-expected",
    default=True,
    help="compare with the simulator's known bills too, if there are any",
)
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
@at_home
@at_log
def verify(home: Home, expected: bool, format_: str) -> int:
    """The independent audit: everything recomputed from the raw log, and compared."""
    return _verify(home, expected=expected, format_=format_)


def _verify(home: Home, *, expected: bool, format_: str = "table") -> int:
    from opentab.audit import NoInvoices
    from opentab.audit import verify as audit
    from opentab.ledger import balances
    from opentab.ledger.damage import check_files
    from opentab.ledger.invoices import Invoices
    from opentab.money import format_micros

    journal = open_journal_now(home)
    unverified = check_files(home.ledger)
    invoices = Invoices.open(home.ledger)
    snapshot = balances.latest(home.ledger)
    journal.refresh()  # a pipeline may be at work: by now the journal has all that the invoices were made from
    if invoices is not None and invoices.position > journal.position:
        raise LedgerError(
            f"invoices were issued at position {invoices.position}, but the journal ends at {journal.position}",
            hint="restore the whole ledger from one backup",
        )
    with _bar(0, "verifying", always=True) as advance:
        report = audit(
            home,
            journal,
            invoices=invoices or NoInvoices(),
            balances=snapshot,
            expected=expected,
            progress=lambda _, total: advance(1, total=total, label="verifying"),
        )
        if invoices is not None and home.invoices_path.is_dir():
            report = replace(report, checks=[*report.checks, _check_files(home, invoices)])
    if format_ == "json":
        terminal.print_json(
            [
                {
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
                        {
                            "name": c.name,
                            "compared": c.compared,
                            "differences": c.differences,
                            "samples": c.samples,
                            "note": c.note,
                        }
                        for c in report.checks
                    ],
                }
            ]
        )
        return OK if report.agrees else DIFFERENT
    for check in report.checks:
        mark = terminal.paint("agrees ", terminal.GREEN) if check.agrees else terminal.paint("DIFFERS", terminal.RED)
        note = f"  ({check.note})" if check.note else ""
        found = "" if check.agrees else f", {check.differences:,} differ"
        terminal.write(f"{mark}  {check.name:<14} {check.compared:>12,} compared{found}{note}")
        for sample in check.samples:
            terminal.write(f"           {terminal.printable(sample)}")
    if report.not_yet_billed_segments:
        terminal.write(f"not yet billed: {report.not_yet_billed_segments:,} segments of the log")
    if unverified:
        terminal.write(f"unverified: {unverified:,} files of an earlier version, written without checksums")
    duplicates = f"{report.duplicates:,} duplicates, " if report.duplicates else ""
    sums = (
        f"{report.events:,} events, {report.rejections:,} rejections, {duplicates}"
        f"{format_micros(report.amount_micros)} {home['billing.currency']} in {report.batches:,} batches"
    )
    if report.agrees:
        terminal.write(terminal.paint(f"The ledger agrees with the log: {sums}.", terminal.GREEN))
        return OK
    if all(check.agrees for check in report.checks if check.name != FILES):
        terminal.write(f"The ledger agrees with the log: {sums}.")
        terminal.write(terminal.paint("The invoice files DO NOT agree with the ledger.", terminal.RED))
        return DIFFERENT
    if report.gone and report.agrees_otherwise:
        gone = "; ".join(report.gone)
        terminal.write(terminal.paint(f"Not all could be verified: {gone}. The rest agrees.", terminal.RED))
    else:
        terminal.write(terminal.paint(f"The ledger DOES NOT agree with the log: {sums}.", terminal.RED))
    return DIFFERENT


def _check_files(home: Home, invoices: Invoices) -> Check:
    """The invoice files, held against the invoices in the ledger."""
    from opentab.audit.check import Check
    from opentab.sinks.files import compare

    count, differing = compare(home.invoices_path, invoices, currency=home["billing.currency"])
    samples = [
        f"{path} is not what the ledger says: delete it, then opentab invoices --export writes it again"
        for path in differing[:FILES_SHOWN_MAX]
    ]
    return Check(FILES, count, len(differing), samples)


@commands.command()
@click.option("--period", required=True, metavar="2026-01")
@click.option("--customer", required=True, metavar="NAME")
@click.option("--revision", type=int, metavar="R", help="only what this revision of the invoice was made from")
@click.option("--events", is_flag=True, help="every raw event with its place in the log, not only the batches")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
@at_log
def trace(home: Home, period: str, customer: str, revision: int | None, events: bool, format_: str) -> int:
    """The batches and log places that a customer's cents of a period came from."""
    from opentab.audit import NoInvoices, invoice_of
    from opentab.audit import trace as follow
    from opentab.ledger.invoices import Invoices
    from opentab.money import format_micros, format_minor
    from opentab.periods import format_us, parse_period

    parse_period(period)
    journal = open_journal_now(home)
    invoice = None
    if revision is not None:
        invoice = invoice_of(Invoices.open(home.ledger) or NoInvoices(), period, customer, revision)
        journal.refresh()  # by now it has all that the invoice was made from
    found = follow(home, journal, period, customer, upto=invoice.position if invoice else None)
    currency = home["billing.currency"]
    adds_up = invoice is None or invoice.total_minor == found.total_minor(currency)
    taken = {record.batch: record.taken for record in journal.batches()}
    if events:
        columns = ["batch", "place", "time", "type", "kind", "period", "amount", "reverses", "reason", "actor"]
        rows: Iterator[list[Any]] = (
            [
                e.batch,
                e.place,
                format_us(e.at_us),
                e.type,
                _kind(e.adjustment),
                e.own_period,
                format_micros(e.amount_micros),
                e.reverses,
                e.reason,
                e.actor,
            ]
            for e in found.events()
        )
    else:
        columns = ["batch", "segments", "type", "kind", "period", "amount", "events", "first", "last"]
        rows = (
            [
                *(
                    line.batch,
                    _segments(taken[line.batch]),
                    line.type,
                    _kind(line.adjustment),
                    line.own_period,
                ),
                *(
                    format_micros(line.amount_micros),
                    line.event_count,
                    format_us(line.first_us),
                    format_us(line.last_us),
                ),
            ]
            for line in found.lines
        )
    if format_ == "json":
        terminal.print_json(dict(zip(columns, row, strict=True)) for row in rows)
    elif format_ == "csv":
        terminal.print_csv(columns, rows)
    else:
        whose = f"{period} for {terminal.printable(customer)}"
        if invoice:
            head = f"invoice of {whose}, revision {invoice.revision}: {format_minor(invoice.total_minor, currency)}"
            issued = f"position {invoice.position}, issued at {format_us(invoice.issued_us)}"
            terminal.write(f"{head} {currency}, {issued}")
        terminal.print_table(columns, rows, right=[c for c in ("batch", "amount", "events") if c in columns])
        total = f"{found.event_count:,} events, {format_micros(found.amount_micros)} {currency} in {whose}"
        if invoice:
            rounded = format_minor(found.total_minor(currency), currency)
            total += f"; rounded {rounded}, {'as the invoice says' if adds_up else 'NOT what the invoice says'}"
        terminal.write(terminal.paint(total, terminal.DIM))
    if events and found.gone:
        shown = ", ".join(f"{batch:,}" for batch in found.gone)
        terminal.complain(f"the log of these batches is gone, so their events are not shown: {shown}")
        return DIFFERENT
    return OK if found.lines and adds_up else DIFFERENT


def _kind(adjustment: bool) -> str:
    return "adjustment" if adjustment else "usage"


def _segments(taken: dict[str, tuple[int, int]]) -> str:
    """The segments of a batch: default/3-7."""
    return " ".join(f"{name}/{first}" + (f"-{last}" if last > first else "") for name, (first, last) in taken.items())


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

    from opentab.java import find_java
    from opentab.lab.demo import staged, stay
    from opentab.lab.screen import compare_bills, watch
    from opentab.server.serve import check_free

    find_java()
    check_free("127.0.0.1", port)
    path = Path(home_dir) if home_dir else Path(tempfile.mkdtemp(prefix="opentab-demo-"))
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} is not empty", hint="give --home a new directory")
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if free < DEMO_BYTES_MIN:
        raise MachineError(
            f"{path} has {free >> 20:,} MiB of room", hint=f"the demo needs {DEMO_BYTES_MIN >> 20:,} MiB"
        )
    signal.signal(signal.SIGTERM, _interrupt)
    home = config.load(path)
    with staged(home, port=port) as stage:
        watch(stage, **options)
        terminal.write()
        code = _verify(home, expected=True)
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

    home.path.mkdir(parents=True, exist_ok=True)
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
    try:
        backlog = send(
            home, once=once, patience=_duration_option("--patience", patience), say=terminal.complain, watch=watch
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
    from opentab.supervisor import PARTS, supervise

    home.path.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in PARTS if name not in without and (name != "deliver" or home["invoices.http_url"])]
    patience = _duration_option("--hung-after", hung_after)
    if "serve" in wanted:
        scheme = "https" if home["server.tls_cert"] else "http"
        terminal.write(f"the page will be at {scheme}://{home['server.host']}:{home['server.port']}/", sys.stderr)
    supervise(home, wanted, hung_after=patience, say=lambda text: terminal.write(text, sys.stderr))


@commands.group()
def log() -> None:
    """The log that the ledger is billed from."""


@log.command("adopt")
@click.argument("uri")
@click.option("--same-offsets", is_flag=True, help="it holds the same events at the same offsets: go on where we are")
@click.option("--leave-unread", is_flag=True, help="what the old log still holds unread is never billed")
@at_home
def log_adopt(home: Home, uri: str, same_offsets: bool, leave_unread: bool) -> None:
    """Bill the ledger from the log at URI from now on. URI is written as log.uri is."""
    from opentab.billing.adopt import adopt_log

    adopted = adopt_log(home, uri, same_offsets=same_offsets, leave_unread=leave_unread)
    if adopted.batch is None:
        terminal.write(f"the ledger is billed from this log already: {adopted.log_id}; nothing was changed")
    else:
        terminal.write(f"old log: {adopted.before_id or 'without an id'}")
        terminal.write(f"new log: {adopted.log_id}")
        terminal.write(f"batch {adopted.batch:,} records the move")
        if same_offsets:
            terminal.write("the new log is read on from the journal's offsets")
        else:
            terminal.write("the new log is read from its beginning: what was billed before counts again,")
            terminal.write("except for events whose ids are still remembered")
    if home["log.uri"] != uri:
        terminal.write(f'now set uri = "{uri}" under [log] in {home.path / config.FILE_NAME}, here and on all servers')


@log.command("clock")
@click.option("--restart", is_flag=True, help="let arrival run anew from now, after a clock was wrong")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
@at_log
def log_clock(home: Home, restart: bool, format_: str) -> int:
    """Where arrival stands in each partition, beside this machine's clock. Ends with 1 if it contradicts that."""
    from opentab.billing.clock import restart_clock
    from opentab.periods import format_us
    from opentab.views.clock import print_clocks

    if restart:
        done = restart_clock(home)
        sys.stderr.write(f"arrival runs anew from {format_us(done.at_us)}: batch {done.batch:,}\n")
    return OK if print_clocks(home, format_) else DIFFERENT


@commands.group()
def token() -> None:
    """Access tokens for opentab serve: make a key, issue, revoke."""


@token.command("key")
@at_home
def token_key(home: Home) -> None:
    """Write a new key to the home's server.key_file, or to key beside opentab.toml."""
    from opentab.server.tokens import new_key

    path = home.path / (home["server.key_file"] or "key")
    make_directories(home.path)
    try:
        write_new(path, f"{new_key()}\n".encode(), mode=0o600)
    except FileExistsError:
        raise InputError(f"{path} is there already", hint="all tokens are signed with it; remove it first") from None
    terminal.write(f"wrote {path}")
    if not home["server.key_file"]:
        terminal.write(f'set key_file = "{path.name}" under [server] in {home.path / config.FILE_NAME}')


@token.command("issue")
@click.option("--role", type=click.Choice(["customer", "reader", "ingest", "admin"]), required=True)
@click.option("--customer", metavar="NAME", help="for the role customer: whose")
@click.option("--expires", default="30d", show_default=True, help="how long it is good")
@at_home
def token_issue(home: Home, role: str, customer: str | None, expires: str) -> None:
    """Print a new token; its id, for revoking it, goes to standard error."""
    from opentab.server.tokens import Role, issue, token_id

    text = issue(_key(home), Role(role), customer=customer, lifetime=_duration_option("--expires", expires))
    terminal.write(text)
    terminal.write(f"id {token_id(text)}", sys.stderr)


@token.command("revoke")
@click.argument("token_or_id")
@at_home
def token_revoke(home: Home, token_or_id: str) -> None:
    """Let a token, given by itself or by its id, be refused from now on."""
    from opentab.server.revocations import revoke, take_over
    from opentab.server.tokens import token_id

    wanted = token_id(token_or_id)
    revoke(home.ledger, wanted)
    take_over(home.ledger, home.revoked_path)
    terminal.write(f"{wanted} is refused from now on")


def _key(home: Home) -> bytes:
    from opentab.server.tokens import read_key

    key = read_key(home)
    if key is None:
        raise InputError("there is no key to sign tokens with", hint="make one with opentab token key")
    return key


@commands.command()
@click.option("--only", multiple=True, metavar="NAME", help="this fault, and others that are named so; else all")
@click.option("--short", is_flag=True, help="every fault once, quickly")
@click.option("--minutes", default=0.0, show_default=True, help="go on with faults at random until so long has passed")
@click.option("--seed", type=click.IntRange(min=0), help="the same seed draws the same; else one is drawn, and printed")
@click.option("--json", "json_", type=click.Path(path_type=Path), metavar="FILE", help="write what was measured there")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="write chaos.md and chaos.png there")
def chaos(only: tuple[str, ...], seed: int | None, **options: Any) -> int:
    """Break everything for real, one thing after the other with load on, and show that the bill still adds up."""
    from opentab.lab.chaos.command import run_chaos

    signal.signal(signal.SIGTERM, _interrupt)
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    return OK if run_chaos(only, seed=seed, **options) else DIFFERENT


def figures_to(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a bench the option --json."""
    file = click.Path(path_type=Path)
    return click.option("--json", "json_path", type=file, metavar="FILE", help="write the figures there too")(command)


@commands.group(invoke_without_command=True)
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
    from opentab.lab.plots import draw_all
    from opentab.lab.tool import find_matplotlib
    from opentab.lab.whole_bench import all_chapters, bench_whole, document_to_keep, failed_chapters, quick_chapters

    if plots_path is not None:
        find_matplotlib()
    chapters = quick_chapters() if quick else all_chapters(events=events, repeats=repeats)
    names = [chapter.name for chapter in chapters]
    for name in chosen:
        if name not in names:
            raise click.BadParameter(f"{name} is none of: {', '.join(names)}", param_hint="--chapter")
    chapters = [chapter for chapter in chapters if not chosen or chapter.name in chosen]
    kept = document_to_keep(json_path) if chosen and json_path is not None else None
    with _bar(len(chapters), "bench", always=True) as advance:
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
    from opentab.lab.compare import compare, machines_differ, read_figures

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
    from opentab.lab.peers_bench import ALL, QUICK, bench_peers
    from opentab.lab.whole_bench import SIZES_OF_TOPICS

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
    from opentab.lab.recovery_bench import bench_recovery

    _print_figures(bench_recovery, **options)


def _print_figures(measure: Callable[..., list[Figure]], **options: Any) -> list[Figure]:
    """Run a bench in a directory of its own, and print what it measured."""
    import tempfile

    from opentab.lab.figures import render

    signal.signal(signal.SIGTERM, _interrupt)
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
    from opentab.lab.ingest_bench import bench_ingest

    _print_figures(bench_ingest, events=events, repeats=repeats, old_batches=batches, json_path=json_path)


@bench.command("closing")
@click.option("--customers", "sizes", multiple=True, type=int, help="how many; again for more [1000, 100000, 1000000]")
@click.option("--repeats", default=2, show_default=True, type=SOME, help="of each size, in turn")
@figures_to
def bench_closing_command(sizes: tuple[int, ...], **options: Any) -> None:
    """Time to close a month, and what the stream notices of it."""
    from opentab.lab.closing_bench import SIZES, bench_closing

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
    from opentab.lab.reads_bench import bench_reads

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
    from opentab.lab.dedupe_bench import bench_dedupe

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
    from opentab.lab.freshness_bench import bench_freshness

    _print_figures(bench_freshness, **options)


@bench.command("replica")
@click.option("--customers", default=1_000_000, show_default=True, type=CUSTOMERS, help="in the ledger")
@click.option("--repeats", default=3, show_default=True, type=SOME, help="of each way, in turn")
@figures_to
def bench_replica_command(**options: Any) -> None:
    """Time to make a replica, from the balances and without them, and what it weighs."""
    from opentab.lab.replica_bench import bench_replica

    _print_figures(bench_replica, **options)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def open_journal_now(home: Home) -> Journal:
    """The home's journal, which must be there."""
    journal = open_journal(home)
    if journal is None:
        raise InputError(f"nothing was billed yet in {home.path}", hint="run opentab run --once first")
    return journal


def open_journal(home: Home) -> Journal | None:
    """The home's journal, or None where nothing was billed yet."""
    from opentab.ledger.journal import Journal

    if not home.path.exists():
        raise InputError(f"there is no home at {home.path}", hint="give --home, or make one with opentab init")
    return Journal.open(home.ledger, home.identity)


@contextmanager
def _bar(size: int, label: str, *, always: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal, for large work; yields how to advance it."""
    if not sys.stderr.isatty() or (size < BAR_BYTES_MIN and not always):
        yield lambda step, **_: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=size or None)

        def advance(step: int, *, total: int | None = None, label: str | None = None) -> None:
            shown.update(task, advance=step, total=total, description=label)

        yield advance


if __name__ == "__main__":
    main()
