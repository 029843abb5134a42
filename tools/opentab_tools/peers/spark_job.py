"""Spark's own ways: python -m opentab_tools.peers.spark_job WAY ADDRESS TOPIC SCRATCH BATCH_EVENTS REDIS_PORT

WAY is reading, rocksdb, heap or redis. It prints a PeerRun. Settings are those that Spark's guide advises for two
cores: as many shuffle partitions as cores, a heap with room for all of the state; for RocksDB changelog checkpoints
and no count of all rows, which costs a look-up for each write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import __version__
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from opentab.runtime.published import CONNECTOR
from opentab_tools.measuring.disk_usage import file_bytes
from opentab_tools.peers.fetching import FETCHING
from opentab_tools.peers.outcome import PeerRun
from opentab_tools.peers.progress import behind_the_warm_up
from opentab_tools.servers.resp import RedisLine

CORES = 2
PIPELINE_COMMANDS = 10_000
PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
SETTINGS = {
    "spark.master": f"local[{CORES}]",
    "spark.app.name": "peer",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "8g",
    "spark.driver.host": "127.0.0.1",
    "spark.jars.packages": CONNECTOR,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
KAFKA = {"startingOffsets": "earliest"} | {f"kafka.{name}": value for name, value in FETCHING.items()}
SCHEMA = "time string, customer string, type string, amount string"
TOTAL = """
local sum, cursor = 0, '0'
repeat
  local found = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = found[1]
  for _, key in ipairs(found[2]) do
    for _, value in ipairs(redis.call('HVALS', key)) do sum = sum + tonumber(value) end
  end
until cursor == '0'
return string.format('%.0f', sum)
"""


def main(way: str, address: str, topic: str, scratch: Path, batch_events: str, store: str) -> None:
    """Read the topic once, and say what came of it."""
    settings = SETTINGS | ({} if way in ("reading", "redis") else _state(way))
    spark = _session(settings | {"spark.sql.warehouse.dir": str(scratch / "warehouse")})
    kafka = KAFKA | {"subscribe": topic, "maxOffsetsPerTrigger": batch_events}
    stream = spark.readStream.format("kafka").options(**kafka).option("kafka.bootstrap.servers", address).load()
    progress = _to_the_end(_sink(way, stream, store), scratch / "checkpoint")
    measured_events, measured_seconds = behind_the_warm_up(progress)
    event_count, sum_micros, state_bytes = _bill(way, spark, scratch / "checkpoint", store)
    run = PeerRun(
        name=f"Spark, {way}",
        version=__version__,
        measured_events=measured_events,
        measured_seconds=measured_seconds,
        event_count=event_count or sum(one["numInputRows"] for one in progress),
        sum_micros=sum_micros,
        checkpoints=len(progress),
        state_bytes=state_bytes,
        memory_bytes_max=0,
        settings=settings | kafka,
    )
    spark.stop()
    sys.stdout.write("\n" + msgspec.json.encode(run).decode() + "\n")


def _state(way: str) -> dict[str, str]:
    name = {"rocksdb": "RocksDBStateStoreProvider", "heap": "HDFSBackedStateStoreProvider"}[way]
    return {"spark.sql.streaming.stateStore.providerClass": PROVIDERS + name}


def _session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _sink(way: str, stream: DataFrame, store: str) -> Any:
    """What is done with the messages; nobody reads what the aggregation puts out, so that costs it nothing."""
    if way == "reading":
        return stream.writeStream.format("noop")
    if way == "redis":
        return stream.writeStream.foreachBatch(partial(_to_redis, port=int(store)))
    return _totals(stream).writeStream.format("noop").outputMode("update")


def _totals(messages: DataFrame) -> DataFrame:
    """Monthly totals by customer and type."""
    event = F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")
    events = messages.select(event).select(
        F.substring("event.time", 1, 7).alias("month"),
        F.col("event.customer").alias("customer"),
        F.col("event.type").alias("type"),
        F.col("event.amount").cast("decimal(15,6)").alias("amount"),
    )
    sums = (F.sum("amount").alias("total"), F.count(F.lit(1)).alias("events"))
    return events.groupBy("month", "customer", "type").agg(*sums)


def _to_redis(messages: DataFrame, _: int, port: int) -> None:
    """Add a batch's totals to what Redis holds: a hash a customer and month, a field a type."""
    totals = _totals(messages).select(
        F.concat_ws(":", "customer", "month").alias("key"),
        "type",
        (F.col("total") * 1_000_000).cast("long").alias("micros"),
    )
    totals.mapInArrow(partial(_add, port=port), "added long").agg(F.sum("added")).collect()


def _add(batches: Iterable[pa.RecordBatch], port: int) -> Iterator[pa.RecordBatch]:
    added = 0
    with RedisLine(port) as line:
        for batch in batches:
            keys, types = (batch.column(at).cast(pa.binary()).to_pylist() for at in (0, 1))
            rows = zip(keys, types, batch.column(2).to_pylist(), strict=True)
            while chunk := list(islice(rows, PIPELINE_COMMANDS)):
                line.add(chunk)
            added += batch.num_rows
    yield pa.record_batch({"added": pa.array([added], pa.int64())})


def _to_the_end(sink: Any, checkpoint: Path) -> list[Any]:
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [one for one in query.recentProgress if one["numInputRows"]]


def _bill(way: str, spark: SparkSession, checkpoint: Path, store: str) -> tuple[int, int, int]:
    """How many events the totals are of, what they come to, and what they weigh; zeros where there are none."""
    if way == "reading":
        return 0, 0, 0
    if way == "redis":
        with RedisLine(int(store)) as line:
            used = int(line.info("memory")["used_memory"])
            return 0, int(line.ask(b"EVAL", TOTAL.encode(), b"0")), used
    state = spark.read.format("statestore").load(str(checkpoint))
    total, events = state.agg(F.sum("value.sum"), F.sum("value.count")).collect()[0]
    return int(events), int(total * 1_000_000), file_bytes(checkpoint / "state")


if __name__ == "__main__":
    way, address, topic, scratch, batch_events, store = sys.argv[1:]
    main(way, address, topic, Path(scratch), batch_events, store)
