"""The commands, thin: each reads its options, calls one thing, and prints what came of it."""

from __future__ import annotations

import os
import secrets
import sys
import traceback
from pathlib import Path

import click

from opentab.cli import admin, ingest, judge, pipeline, read  # their commands are registered as they are imported
from opentab.cli.base import OK, commands
from opentab.core.errors import DiskFull, OpentabError, means_disk_full
from opentab.runtime import terminal
from opentab.runtime.disk import write_new

__all__ = ["admin", "commands", "ingest", "judge", "main", "pipeline", "read"]

INTERRUPTED = 130
OUR_BUG = 70


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
    path = Path(f"opentab-bug-{secrets.token_hex(4)}.txt")
    fact = f"this is a bug in opentab: {type(error).__name__}: {(str(error) or '-').splitlines()[0][:200]}"
    try:
        write_new(path, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"), mode=0o600)
    except OSError:
        return fact
    return f"{fact}\n         {path} says where; please report it"
