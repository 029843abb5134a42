"""Flink's side of the bench: python flink_job.py ADDRESS TOPIC WARM_TOPIC hashmap|rocksdb SCRATCH FETCHING

It runs in Flink's own environment, so it knows nothing of opentab. Both jobs run on one MiniCluster, in one JVM, the
first one to warm it up and to prove the query: its totals are collected and summed. The second one is measured. Its
times and checkpoints are Flink's own, asked for when it is over. One line of JSON at the end says it all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from pyflink.version import __version__

PARALLELISM = 2
MICROS = 1_000_000

EVENTS = """
CREATE TEMPORARY TABLE `{name}` (`time` STRING, customer STRING, `type` STRING, amount STRING) WITH (
  'connector' = 'kafka',
  'topic' = '{topic}',
  'properties.bootstrap.servers' = '{address}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  {fetching},
  'format' = 'json'
)"""
TOTALS = """
SELECT SUBSTRING(`time`, 1, 7) AS `month`, customer, `type`,
  SUM(CAST(amount AS DECIMAL(18, 6))) AS amount, COUNT(*) AS n
FROM `{name}` GROUP BY SUBSTRING(`time`, 1, 7), customer, `type`"""
NOWHERE = """
CREATE TEMPORARY TABLE nowhere (`month` STRING, customer STRING, `type` STRING, amount DECIMAL(38, 6), n BIGINT)
WITH ('connector' = 'blackhole')"""


@dataclass(frozen=True)
class Report:
    """What is printed; the instants are Flink's, in milliseconds."""

    version: str
    warm_event_count: int
    warm_sum_micros: int
    running_ms: int  # the last of the tasks began to run
    finished_ms: int
    events_read: int
    checkpoints: int
    state_bytes: int  # of the largest checkpoint
    settings: dict[str, str]


def main(address: str, topic: str, warm_topic: str, state: str, scratch: Path, fetching: dict[str, str]) -> None:
    """1. start a cluster, 2. warm it up and prove the query, 3. measure, 4. say what it came to."""
    settings = job_settings(state, scratch)
    port = start_cluster(settings)
    tables = open_tables(port, settings)
    properties = {f"properties.{name}": value for name, value in fetching.items()}
    given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    for name, source in (("warm", warm_topic), ("measured", topic)):
        tables.execute_sql(EVENTS.format(name=name, topic=source, address=address, fetching=given))
    tables.execute_sql(NOWHERE)
    event_count, sum_micros = collect_totals(tables)
    job = run_measured(tables)
    running_ms, finished_ms, events_read = times(port, job)
    checkpoints, state_bytes = weigh_checkpoints(port, job)
    report = Report(
        version=__version__,
        warm_event_count=event_count,
        warm_sum_micros=sum_micros,
        running_ms=running_ms,
        finished_ms=finished_ms,
        events_read=events_read,
        checkpoints=checkpoints,
        state_bytes=state_bytes,
        settings=settings | properties,
    )
    sys.stdout.write(f"\n{json.dumps(asdict(report))}\n")
    sys.stdout.flush()


def job_settings(state: str, scratch: Path) -> dict[str, str]:
    """All that differs from Flink's defaults."""
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(PARALLELISM),
        "pipeline.object-reuse": "true",  # SQL's operators are made for it
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "execution.checkpointing.interval": "5 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": (scratch / "checkpoints").as_uri(),
        "execution.checkpointing.incremental": str(state == "rocksdb").lower(),
        "state.backend.type": state,
        "restart-strategy.type": "none",  # a run with a failure in it measures nothing
        # RocksDB's share is off the heap; the heap itself is the JVM's option -Xmx.
        "taskmanager.memory.managed.size": "2 gb",
        "io.tmp.dirs": str(scratch / "tmp"),
        "rest.address": "localhost",
        "rest.bind-port": "0",
    }


def start_cluster(settings: dict[str, str]) -> int:
    """Start one worker with a slot a core in the gateway's JVM; the port that it answers on."""
    parts = get_gateway().jvm.org.apache.flink.runtime.minicluster
    plan = parts.MiniClusterConfiguration.Builder()
    plan = plan.setNumTaskManagers(1).setNumSlotsPerTaskManager(PARALLELISM)
    cluster = parts.MiniCluster(plan.setConfiguration(_java(settings)).build())
    cluster.start()
    return int(cluster.getRestAddress().get().getPort())


def open_tables(port: int, settings: dict[str, str]) -> Any:
    """Tables whose jobs run on that cluster, which remembers them when they are over."""
    gateway = get_gateway()
    no_jars = gateway.new_array(gateway.jvm.String, 0)
    environments = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    remote = environments.createRemoteEnvironment("localhost", port, _java(settings), no_jars)
    return StreamTableEnvironment.create(StreamExecutionEnvironment(remote))


def collect_totals(tables: Any) -> tuple[int, int]:
    """Run the query over the warm-up's topic: the count and the micros of what its changes leave in the end."""
    frame = tables.sql_query(TOTALS.format(name="warm")).to_pandas()
    amount = sum(frame["amount"], start=Decimal(0))
    return int(frame["n"].sum()), int(amount * MICROS)


def run_measured(tables: Any) -> str:
    """Run the query over the topic until all of it is read; the id of the job."""
    result = tables.execute_sql(f"INSERT INTO nowhere {TOTALS.format(name='measured')}")
    result.wait()
    return str(result.get_job_client().get_job_id())


def times(port: int, job: str) -> tuple[int, int, int]:
    """When the last of the job's tasks ran, when the job was finished, and how many events its source had read."""
    found = _ask(port, f"jobs/{job}")
    if found["state"] != "FINISHED":
        raise RuntimeError(f"the job is {found['state']}")
    running_ms = events_read = 0
    for vertex in found["vertices"]:
        tasks = _ask(port, f"jobs/{job}/vertices/{vertex['id']}/subtasktimes")["subtasks"]
        running_ms = max(running_ms, *(task["timestamps"]["RUNNING"] for task in tasks))
        if vertex["name"].startswith("Source:"):
            events_read += vertex["metrics"]["read-records"]
    return running_ms, found["timestamps"]["FINISHED"], events_read


def weigh_checkpoints(port: int, job: str) -> tuple[int, int]:
    """How many were completed, and the bytes of the largest."""
    found = _ask(port, f"jobs/{job}/checkpoints")
    return found["counts"]["completed"], found["summary"]["state_size"]["max"]


def _java(settings: dict[str, str]) -> Any:
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    return configuration._j_configuration


def _ask(port: int, path: str) -> Any:
    with urlopen(f"http://localhost:{port}/{path}") as answer:
        return json.load(answer)


if __name__ == "__main__":
    address, topic, warm_topic, state, scratch, fetching = sys.argv[1:]
    main(address, topic, warm_topic, state, Path(scratch), json.loads(fetching))
