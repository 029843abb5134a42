"""Flink SQL beside us: the same totals from the same topic, with its state on the heap or in RocksDB.

It is Apache Flink as PyPI has it, in an environment of its own below `~/.cache/opentab`, with the Kafka connector from
Maven Central among its jars. Set up as Flink's guide to fast SQL advises: mini-batches, sums in two phases, incremental
checkpoints for RocksDB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec
from confluent_kafka import Consumer, TopicPartition

from opentab.core.errors import MachineError, OpentabError
from opentab.runtime.java import find_java
from opentab.runtime.kafka import silent_logger
from opentab_tools.peers.fetching import FETCHING
from opentab_tools.peers.job import run_job
from opentab_tools.peers.outcome import PeerRun
from opentab_tools.servers.jars import alone, cache_path, fetch_jars

FLINK = "2.3.0"  # as requirements-flink.lock has it
CONNECTOR = "5.0.0-2.2"  # the newest there is; it is made for Flink 2.2 and runs on 2.3
INSTALL_SECONDS_MAX = 1800
ANSWER_SECONDS = 10.0
HEAP = "6g"
FLINK_FETCHING = FETCHING | {"max.poll.records": "2000"}  # with ten times as many it was no faster, or slower
BACKENDS = {"heap": "hashmap", "rocksdb": "rocksdb"}
JOB = Path(__file__).with_name("flink_job.py")
PROJECT = Path(__file__).parents[3]

State = Literal["heap", "rocksdb"]


class Report(msgspec.Struct, frozen=True):
    """What flink_job.py prints."""

    version: str
    warm_event_count: int
    warm_sum_micros: int
    running_ms: int
    finished_ms: int
    events_read: int
    checkpoints: int
    state_bytes: int
    settings: dict[str, str]


def install_flink() -> Path:
    """The directory of an environment with Flink and its connector: all of it, or none."""
    find_java()
    place = cache_path() / f"flink-{FLINK}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_name(f".{place.name}.lock")):
        if not place.is_dir():  # another process was quicker
            _install(place)
    return place


def measure_flink(*, address: str, topic: str, warm_topic: str, state: State, scratch: Path) -> PeerRun:
    """Total a small topic, then a large one in the same JVM. The bill is the small one's, the time the large one's."""
    flink = install_flink()
    scratch = scratch.absolute()
    shutil.rmtree(scratch, ignore_errors=True)
    words = [address, topic, warm_topic, BACKENDS[state], str(scratch), msgspec.json.encode(FLINK_FETCHING).decode()]
    options = f"-Xmx{HEAP} -XX:+UseG1GC"
    environment = {"JAVA_HOME": str(find_java().home), "JVM_ARGS": options, "FLINK_LOG_DIR": str(scratch)}
    # Isolated: what lies beside the script, or on our own path, is none of Flink's business.
    command = [str(_python(flink)), "-I", str(JOB), *words]
    report, memory_bytes_max = run_job("Flink", command, scratch, environment, Report)
    written = count_messages(address, topic)
    if report.events_read != written:
        raise OpentabError(f"Flink read {report.events_read:,} events of {written:,}", hint=f"see {scratch}")
    return PeerRun(
        name=f"Flink SQL, {state} state",
        version=report.version,
        measured_events=report.events_read,
        measured_seconds=(report.finished_ms - report.running_ms) / 1000,
        event_count=report.warm_event_count,
        sum_micros=report.warm_sum_micros,
        checkpoints=report.checkpoints,
        state_bytes=report.state_bytes,
        memory_bytes_max=memory_bytes_max,
        settings=report.settings | {"env.java.opts.all": options},
    )


def count_messages(address: str, topic: str) -> int:
    """How many messages a topic holds."""
    client = Consumer({"bootstrap.servers": address, "group.id": "opentab-tools"}, logger=silent_logger)
    try:
        numbers = client.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
        ends = [client.get_watermark_offsets(TopicPartition(topic, number), ANSWER_SECONDS) for number in numbers]
    finally:
        client.close()
    return sum(last - first for first, last in ends)


def _python(flink: Path) -> Path:
    return flink / "bin" / "python"


def _install(place: Path) -> None:
    """Install aside and rename: a directory that has the name is whole."""
    connector = fetch_jars(f"flink-sql-connector-kafka-{CONNECTOR}", (_module(),))
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent, ignore_cleanup_errors=True) as name:
        aside = Path(name) / "environment"
        wanted = ["--require-hashes", "-r", str(PROJECT / "requirements-flink.lock")]
        if (uv := _uv()) is not None:
            _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(aside)])
            _run([uv, "pip", "install", "--quiet", "--python", str(_python(aside)), *wanted])
        else:
            _run([sys.executable, "-m", "venv", str(aside)])
            _run([str(_python(aside)), "-m", "pip", "install", "--quiet", *wanted])
        # Beside Flink's own: classes that each job loads anew would be cold in the job that is measured.
        home = next(aside.glob("lib/python*/site-packages/pyflink/lib"))
        for jar in connector.glob("*.jar"):
            shutil.copy(jar, home)
        os.sync()  # thousands of files
        aside.rename(place)


def _module() -> str:
    return f"org.apache.flink:flink-sql-connector-kafka:{CONNECTOR}"


def _uv() -> str | None:
    own = PROJECT / ".tools" / "uv" / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _not_installed(f"it took more than {INSTALL_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise _not_installed(_reason(done.stderr))


def _reason(output: str) -> str:
    """The line that says why, in the words of pip or of uv."""
    lines = [line.strip(" ×╰─▶") for line in output.splitlines() if line.strip()]
    for word in ("error: ", "because "):
        for line in lines:
            if line.lower().startswith(word):
                return line[len(word) :] if word == "error: " else line
    return lines[-1] if lines else "without a word"


def _not_installed(why: str) -> MachineError:
    return MachineError(
        f"apache-flink {FLINK} could not be installed from PyPI: {why}",
        hint="let this machine reach PyPI for once, with Python 3.11 or 3.12, then it is kept",
        retry_helps=True,
    )
