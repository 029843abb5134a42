"""Spark's own way to drop repeats: python -m opentab_tools.bench.spark_dedupe_peer LOG SCRATCH

It prints how many lines a second it read behind its first batches, and how many events it kept. State is in RocksDB,
as Spark's guide advises for much of it; the watermark is on the arrival, so that no late event is dropped.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opentab.billing.session import open_session
from opentab.log.directory import DirectoryLog
from opentab.runtime import config
from opentab_tools.peers.progress import behind_the_warm_up

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(log_path: Path, scratch: Path) -> None:
    """Read the log once, without repeats."""
    from pyspark.sql import functions as F  # noqa: N812

    files = scratch / "lines"
    _write_plain(DirectoryLog(log_path), files)
    scratch_home = scratch / "home"
    scratch_home.mkdir(parents=True)
    spark = open_session(config.load(scratch_home))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    read = spark.readStream.format("text").option("maxFilesPerTrigger", "16").load(str(files))
    events = read.select(
        F.get_json_object("value", "$.id").alias("id"),
        F.get_json_object("value", "$.amount").alias("amount"),
        F.current_timestamp().alias("arrived"),
    )
    once = events.withWatermark("arrived", "7 days").dropDuplicatesWithinWatermark(["id"])
    query = (
        once.writeStream.format("parquet")
        .option("path", str(scratch / "kept"))
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    lines, seconds = behind_the_warm_up([one for one in query.recentProgress if one["numInputRows"]])
    kept = spark.read.parquet(str(scratch / "kept")).count()
    sys.stdout.write(f"{lines / seconds:.0f} {kept}\n")
    spark.stop()


def _write_plain(log: DirectoryLog, files: Path) -> None:
    """The log's lines as text files, a segment each."""
    files.mkdir(parents=True)
    for partition, numbers in log.pending().items():
        for number in numbers:
            body = bytes(log.read(partition, number).body)
            (files / f"{partition}-{number:09d}.txt").write_bytes(body)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
