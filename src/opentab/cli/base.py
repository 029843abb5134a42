"""What the commands share: the group they belong to, the option --home, the journal they read, a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from opentab import __version__
from opentab.core.errors import InputError, OpentabError
from opentab.runtime import config, terminal
from opentab.runtime.config import Home
from opentab.runtime.permissions import make_private, open_to_others

if TYPE_CHECKING:
    from opentab.ledger.journal import Journal

FORMATS = click.Choice(["table", "csv", "json"])
SOME = click.IntRange(min=1)
CUSTOMERS = click.IntRange(min=10)  # nine have names of their own
OK, DIFFERENT = 0, 1
BAR_BYTES_MIN = 16 * 2**20
TOOLS = {
    "bench": "Measure opentab next to its peers (from a checkout of the source).",
    "chaos": "Break a real cluster, part by part (from a checkout of the source).",
}


TASKS = {
    "Try it": {
        "demo": "three simulated months, live, with a page and a verdict",
        "generate": "simulated events whose bills are known beforehand",
    },
    "Send events": {
        "init": "write opentab.toml for a new home",
        "ingest": "put JSON lines into the log",
        "tail": "show events as they arrive",
        "receipt": "what became of one event",
        "rejections": "what could not be billed, and why",
    },
    "Bill": {
        "run": "the pipeline on Spark: log, totals, invoices",
        "serve": "a replica with REST, live streams and the page",
        "deliver": "put invoices to your HTTP receiver",
        "up": "run, serve and deliver, kept running",
    },
    "Read": {
        "totals": "running totals by customer or type",
        "invoices": "invoices, revisions, previews",
        "periods": "which months are open, closed or final",
        "sql": "ad-hoc SQL over the ledger",
    },
    "Check": {
        "verify": "recompute every bill from the raw log",
        "trace": "lead a bill back to its events",
    },
    "Operate": {
        "doctor": "what is missing or slow, and how to fix it",
        "log": "the log's clock, or another log for the ledger",
        "token": "make a key; issue and revoke access tokens",
        "completion": "completion for bash, zsh or fish",
    },
    "From a checkout": {
        "bench": "measure opentab next to its peers",
        "chaos": "break a real cluster, part by part",
    },
}


class Commands(click.Group):
    """The product's commands, and with a checkout of the source the tools that measure and break it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands by task, a line each. A test holds that none is missing."""
        for task, lines in TASKS.items():
            with formatter.section(task):
                formatter.write_dl(list(lines.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *TOOLS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _tool(cmd_name) if cmd_name in TOOLS else super().get_command(ctx, cmd_name)


def _tool(name: str) -> click.Command:
    try:
        tool: click.Command = getattr(import_module("opentab_tools.commands"), name)
    except ModuleNotFoundError as error:
        if error.name != "opentab_tools":
            raise
        return _missing_tool(name)
    return tool


def _missing_tool(name: str) -> click.Command:
    @click.command(name, help=TOOLS[name], context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def missing(words: tuple[str, ...]) -> None:
        raise InputError(
            f"opentab {name} comes with the source, not with the package", hint=f"clone it and run make {name}"
        )

    return missing


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
            from opentab.tables.error_text import reading  # slow to load, and most commands need it only here

            with reading(home.ledger):
                raise

    return with_home


def own_home(home: Home) -> None:
    """Make the home if it is missing, for its owner alone; say so where one of an earlier version is open to others."""
    make_private(home.path)
    if open_to_others(home.path):
        terminal.complain(f"other users may look into the home {home.path}: chmod 700 {home.path}")


def at_log(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let the option --log name another log than the home's settings do."""

    @click.option("--log", "log_uri", metavar="URI", help="the log, in place of log.uri")
    @wraps(command)
    def with_log(home: Home, *args: Any, log_uri: str | None, **options: Any) -> Any:
        return command(home if log_uri is None else home.with_setting("log.uri", log_uri), *args, **options)

    return with_log


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
def progress_bar(size: int, label: str, *, always: bool = False) -> Iterator[Callable[..., None]]:
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


def duration_option(name: str, text: str | None) -> timedelta:
    try:
        return config.parse_duration(text) if text else timedelta()
    except ValueError:
        raise InputError(f"{name} {text!r} is no duration", hint="for example 30m, 12h or 10d") from None


def interrupt(*_: object) -> None:
    """Let a signal end a command as Ctrl-C does."""
    raise KeyboardInterrupt
