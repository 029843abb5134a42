"""What this machine has and lacks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from opentab.core.errors import LogError, OpentabError
from opentab.ledger.diagnosis import BATCHES, diagnose
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.runtime.java import find_java
from opentab.runtime.permissions import open_to_others
from opentab.runtime.spark_inside import check_connector, check_spark

DISK_BYTES_MIN = 1024**3
MEMORY_BYTES_MIN = 3 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    fact: str
    fix: str = ""
    is_slow: bool = False  # it works, but late: nothing is missing


def repair_ledger(home: Home) -> list[str]:
    """Make a ledger whole that a power cut or a disk damaged; says what was done. No pipeline may run meanwhile."""
    from opentab.billing.pipeline_lock import HomeLock
    from opentab.ledger.repair import repair

    if not home.path.exists():
        return []
    lock = HomeLock(home.path, take_over=False)
    try:
        return repair(home.ledger, home.identity)
    finally:
        lock.release()


def examine(home: Home) -> list[Finding]:
    """Look at everything that opentab needs."""
    found = [
        finding
        for look in (_python, _java, _spark, _memory, _disk, _home, _ledger, _log, _sink)
        if (finding := look(home)) is not None
    ]
    return [*found, *_delays(home)]


def _python(_: Home) -> Finding:
    return Finding("Python", True, f"{sys.version.split()[0]} at {sys.executable}")


def _java(_: Home) -> Finding:
    try:
        java = find_java()
    except OpentabError as error:
        return Finding("Java", False, error.fact, error.hint or "")
    return Finding("Java", True, f"{java.version} at {java.home}")


def _spark(home: Home) -> Finding:
    try:
        version = check_spark()
        if home.kafka is not None:
            check_connector(home["kafka.connector"], version)
    except OpentabError as error:
        return Finding("Spark", False, error.fact, error.hint or "")
    return Finding("Spark", True, f"pyspark {version}, master {home.spark['spark.master']}")


def _memory(_: Home) -> Finding:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "" if size >= MEMORY_BYTES_MIN else "the pipeline needs about 3 GiB"
    return Finding("memory", not fix, f"{size / 2**30:.1f} GiB, {os.cpu_count()} cores", fix)


def _disk(home: Home) -> Finding:
    place = next(path for path in (home.path, *home.path.parents) if path.exists())
    free = shutil.disk_usage(place).free
    fix = "" if free >= DISK_BYTES_MIN else "free at least 1 GiB, or choose another --home"
    return Finding("disk", not fix, f"{free / 2**30:.1f} GiB free at {place}", fix)


def _home(home: Home) -> Finding:
    if not home.path.exists():
        return Finding("home", True, f"{home.path} is not there yet; the first command makes it")
    if not os.access(home.path, os.W_OK):
        return Finding("home", False, f"{home.path} cannot be written", "change its owner, or choose another --home")
    fix = f"other users may look into it: chmod 700 {home.path}" if open_to_others(home.path) else ""
    return Finding("home", True, str(home.path), fix)


def _ledger(home: Home) -> Finding:
    from opentab.ledger.journal import Journal

    try:
        journal = Journal.open(home.ledger, home.identity)
    except OpentabError as error:
        return Finding("ledger", False, error.fact, error.hint or "")
    place = "" if home.ledger.is_local else f" at {home.ledger}"
    return Finding("ledger", True, f"position {journal.position if journal else 0}{place}")


def _log(home: Home) -> Finding | None:
    """Whether the log is the one that the ledger is billed from."""
    from opentab.billing.log_check import check_log

    try:
        log_id = check_log(home)
    except LogError as error:
        return Finding("log", False, error.fact, error.hint or "")
    except OpentabError:
        return None  # the ledger's trouble is told above
    return None if log_id is None else Finding("log", True, f"{home['log.uri']}, id {log_id}")


def _sink(home: Home) -> Finding | None:
    """Whether invoices could be delivered; nobody is called."""
    from opentab.sinks.http import receiver_of

    if not home["invoices.http_url"]:
        return None
    try:
        receiver = receiver_of(home)
    except OpentabError as error:
        return Finding("invoices", False, error.fact, error.hint or "")
    how = "signed" if receiver.keys else "without a signature"
    return Finding("invoices", True, f"to {receiver.url}, {how}; opentab deliver puts them there")


def _delays(home: Home) -> Iterator[Finding]:
    """Why batches are slow or late, if any pipeline ever ran."""
    from opentab.ledger.journal import Journal
    from opentab.replica.presence import present

    beat = read_heartbeat(home.ledger)
    try:
        journal = Journal.open(home.ledger, home.identity)
        records = journal.batches(after=journal.position - BATCHES - 1) if journal is not None else []
    except OpentabError:
        return  # told above
    replicas = present(home.ledger, now_us=beat.at_us) if beat is not None else []
    found = diagnose(records, records[-1] if records else None, beat, replicas)
    if found is None:
        return
    yield Finding("delays", True, found.sentence, is_slow=found.is_late)
    for cause in found.causes:
        yield Finding("delays", True, f"{cause.name}: {cause.fact}", cause.fix, is_slow=True)
