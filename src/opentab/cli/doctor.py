"""What this machine has and lacks, and whether what the home names answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from opentab.core.errors import LogError, OpentabError
from opentab.ledger.diagnosis import BATCHES, diagnose
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab.runtime.java import find_java
from opentab.runtime.permissions import open_to_others
from opentab.runtime.spark_inside import check_kafka_source, check_spark

DISK_BYTES_MIN = 1024**3
MEMORY_BYTES_MIN = 3 * 1024**3
CALL_SECONDS = 3.0
PYTHON_SECONDS = 30.0
SILENT_SECONDS = 10.0  # a pipeline that has been silent for longer does not run
VERSIONS = "import sys, opentab, pyspark; print(*sys.version_info[:2], opentab.__version__, pyspark.__version__)"


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
    """Look at everything that opentab needs, and call what the home names."""
    found = [look(home) for look in (_python, _java, _spark, _tasks_python, _memory, _disk, _ports, _home, _sink)]
    bucket, kafka = _bucket(home), _kafka(home)
    found += [bucket, kafka]
    if bucket is None or bucket.ok:
        found.append(_ledger(home))
        found += [_log(home), _clock(home)] if kafka is None or kafka.ok else []
        found += _delays(home)
    return [finding for finding in found if finding is not None]


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
            check_kafka_source(home["kafka.connector"], home.spark, version)
    except OpentabError as error:
        return Finding("Spark", False, error.fact, error.hint or "")
    return Finding("Spark", True, f"pyspark {version}, master {home.spark['spark.master']}")


def _tasks_python(home: Home) -> Finding | None:
    """Whether the Python of Spark's tasks has what ours has, as far as it can be seen from here."""
    from opentab.billing.session import python_of_tasks

    python = python_of_tasks(home)
    if python == sys.executable:
        return None
    fix = "set pyspark.python under [spark] to a Python that has this opentab and this pyspark"
    if shutil.which(python) is None:
        if home.tasks_are_here:
            return Finding("tasks", False, f"{python}, which tasks are to run on, is not here", fix)
        return Finding("tasks", True, f"{python} on the executors, which cannot be seen from here")
    try:
        done = subprocess.run(
            [python, "-c", VERSIONS], capture_output=True, text=True, timeout=PYTHON_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("tasks", False, f"{python}, which tasks are to run on, cannot be run: {error}", fix)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        return Finding("tasks", False, f"{python}, which tasks are to run on, lacks something: {reason}", fix)
    from opentab import __version__
    from opentab.runtime.spark_inside import pyspark_version

    ours = [*map(str, sys.version_info[:2]), __version__, pyspark_version()]
    theirs = done.stdout.split()
    named = "Python {}.{}, opentab {}, pyspark {}".format
    if theirs != ours:
        return Finding("tasks", False, f"tasks are to run on {named(*theirs)}, and here is {named(*ours)}", fix)
    return Finding("tasks", True, f"{named(*theirs)} at {python}")


def _memory(_: Home) -> Finding:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "" if size >= MEMORY_BYTES_MIN else "the pipeline needs about 3 GiB"
    return Finding("memory", not fix, f"{size / 2**30:.1f} GiB, {os.cpu_count()} cores", fix)


def _disk(home: Home) -> Finding:
    """Room for the home, the log and Spark's own files, which may be on disks of their own."""
    wanted = [home.path, Path(tempfile.gettempdir()), *([] if home.kafka else [home.log_path])]
    places = [next(path for path in (want, *want.parents) if path.exists()) for want in wanted]
    disks = {place.stat().st_dev: (shutil.disk_usage(place).free, place) for place in reversed(places)}
    free, place = min(disks.values())
    fix = "" if free >= DISK_BYTES_MIN else "free at least 1 GiB, or choose another --home or TMPDIR"
    return Finding("disk", not fix, f"{free / 2**30:.1f} GiB free at {place}", fix)


def _ports(home: Home) -> Finding | None:
    """Whether the ports that are to be listened on are free, while nothing of this home listens on them."""
    from opentab.replica.flags import read_following
    from opentab.server.serve import check_free

    wanted = {}
    following = read_following(home.replica_path)
    if following is None or not following.is_alive:
        wanted["server.port"] = (home["server.host"], home["server.port"])
    if not _pipeline_runs(home):
        bound = home.spark.get("spark.driver.bindAddress", "127.0.0.1" if home.tasks_are_here else "0.0.0.0")
        fixed = [name for name in ("spark.driver.port", "spark.blockManager.port") if name in home.spark]
        wanted |= {name: (bound, int(home.spark[name])) for name in fixed}
    wanted = {name: at for name, at in wanted.items() if at[1]}
    for name, (host, port) in wanted.items():
        try:
            check_free(host, port)
        except OpentabError as error:
            return Finding("ports", False, error.fact, f"end what listens there, or set another {name}")
    if not wanted:
        return None
    return Finding("ports", True, f"{', '.join(str(port) for _, port in wanted.values())} free")


def _pipeline_runs(home: Home) -> bool:
    if not home.ledger.is_local:
        return False  # on another machine, perhaps
    beat = read_heartbeat(home.ledger)
    return beat is not None and time.time() - beat.at_us / 1e6 < SILENT_SECONDS


def _bucket(home: Home) -> Finding | None:
    """Whether the store answers at all; what it says is the ledger's."""
    address = home.ledger.options.get("aws_endpoint_url") or os.environ.get("AWS_ENDPOINT_URL")
    if home.ledger.is_local or not address:
        return None
    parts = urlsplit(address)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), CALL_SECONDS).close()
    except (OSError, ValueError) as error:
        return Finding(
            "bucket", False, f"{address} does not answer: {error}", "start the store, or mend aws_endpoint_url"
        )
    return Finding("bucket", True, f"{address} answers")


def _kafka(home: Home) -> Finding | None:
    from opentab.log import open_topic

    topic = open_topic(home)
    if topic is None:
        return None
    try:
        found = topic.find_id()
    except OpentabError as error:
        return Finding("Kafka", False, error.fact, error.hint or "start the brokers, or mend log.uri and [kafka]")
    state = "answers" if found else "is not there yet; the first command makes it"
    return Finding("Kafka", True, f"{topic} {state}")


def _clock(home: Home) -> Finding | None:
    """Whether this machine's clock agrees with what arrived."""
    from opentab.billing.clock import clocks_of

    with suppress(OpentabError):  # told above
        _, clocks = clocks_of(home)
        refused = next((one.refused for one in clocks if one.refused), None)
        if refused is not None:
            return Finding("clock", False, refused, "opentab log clock shows the clocks, and --restart helps")
        held = [one.partition for one in clocks if one.held_back]
        if held:
            return Finding(
                "clock",
                False,
                f"log partition {held[0]!r} is held back until this clock is at its arrival",
                "set the clock that is wrong right; then opentab log clock",
            )
        return Finding("clock", True, "agrees with what arrived") if clocks else None
    return None


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
    """Whether invoices could be delivered. The receiver is asked for nothing but to answer."""
    from opentab.sinks.http import receiver_of

    if not home["invoices.http_url"]:
        return None
    try:
        receiver = receiver_of(home)
    except OpentabError as error:
        return Finding("invoices", False, error.fact, error.hint or "")
    try:
        httpx.request("OPTIONS", receiver.url, timeout=CALL_SECONDS, trust_env=not receiver.is_loopback)
    except httpx.HTTPError as error:
        said = str(error) or type(error).__name__
        return Finding(
            "invoices", False, f"{receiver.url} does not answer: {said}", "start it, or mend invoices.http_url"
        )
    how = "signed" if receiver.keys else "without a signature"
    return Finding("invoices", True, f"to {receiver.url}, {how}; it answers, and opentab deliver puts them there")


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
