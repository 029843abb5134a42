"""Homes for measurements: a month of so many customers, billed as a user would bill it, and copies of such homes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.simulator.command import bill_log
from opentab_tools.bench.month_log import write_month


def bill_month(path: Path, *, customers: int) -> Home:
    """A new home with a billed month."""
    path.mkdir(parents=True)
    home = config.load(path)
    write_month(home, customers=customers)
    bill_log(home)
    return home


def copy_home(source: Home, path: Path) -> Home:
    """A copy of a home at rest, in place of whatever was there. Segments never change, so links will do for the log."""
    shutil.rmtree(path, ignore_errors=True)
    home = config.load(path)
    shutil.copytree(source.log_path, home.log_path, copy_function=os.link)
    for part, copied in ((source.ledger.path, home.ledger.path), (source.replica_path, home.replica_path)):
        if part.exists():
            shutil.copytree(part, copied)
    return home


def journal_of(home: Home) -> Journal:
    """The journal of a home in which something was billed."""
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal
