"""Spark's own ways with the same topic: reading alone, its streaming aggregation, and a key-value store behind it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from opentab.runtime.java import find_java
from opentab_tools.peers.job import run_job
from opentab_tools.peers.outcome import PeerRun
from opentab_tools.servers.redis_server import redis_server
from opentab_tools.servers.resp import RedisLine

Way = Literal["reading", "rocksdb", "heap", "redis"]
# It keeps what it is told, as its own docs advise: each second on the disk.
REDIS_OPTIONS = {"save": "", "appendonly": "yes", "appendfsync": "everysec"}


def measure_spark(way: Way, *, address: str, topic: str, batch_events: int, scratch: Path) -> PeerRun:
    """Let a Spark of its own read a topic to its end, so many events a batch."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        words = [way, address, topic, str(scratch), str(batch_events)]
        if way != "redis":
            return _run(scratch, *words, "")
        with redis_server(scratch, REDIS_OPTIONS) as server:
            run = _run(scratch, *words, str(server.port))
            held = psutil.Process(server.pid).memory_info().rss
            with RedisLine(server.port) as line:
                version = line.info("server")["redis_version"]
            return msgspec.structs.replace(
                run,
                version=f"{run.version}, Redis {version}",
                settings=run.settings | {f"redis {name}": value for name, value in REDIS_OPTIONS.items()},
                memory_bytes_max=run.memory_bytes_max + held,  # it has never held more than now
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(scratch: Path, *words: str) -> PeerRun:
    command = [sys.executable, "-m", "opentab_tools.peers.spark_job", *words]
    environment = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    run, memory_bytes_max = run_job(f"Spark, {words[0]}", command, scratch, environment, PeerRun)
    return msgspec.structs.replace(run, memory_bytes_max=memory_bytes_max)
