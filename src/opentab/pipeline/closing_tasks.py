"""A closing on Spark: where there are too many rows for one machine, its tasks make and stage the invoices.

The rows are cut into ranges of customers; a task adds up its range and stages the invoices with the same
code as ever. What the tasks staged counts only if the driver commits their reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from opentab.errors import LedgerError
from opentab.ledger.billed import connect
from opentab.ledger.closing import LINES, PART_ROWS, Closing, Due, Order, Staged, stage_invoices
from opentab.ledger.damage import find_damage
from opentab.ledger.files import LedgerFile, read_batches
from opentab.ledger.issue import ISSUED, issue_over
from opentab.place import Place
from opentab.records import BALANCE, ENTRY

REPORT_SCHEMA = "report binary"
MEMORY_LIMIT = "512MB"  # of a task; the rest goes to the disk
POOL = "closing"
READING_TASKS = 4  # a core
READING_ROWS = 65_536


def stage_on_spark(spark: SparkSession, closing: Closing, due: Due, order: Order) -> Staged:
    """Stage the invoices of all periods that are closed."""
    # A pool of its own: the stream's tasks take turns with ours instead of waiting for all of them.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
    parts = closing.row_count() // PART_ROWS + 1
    try:
        used = used_rows(spark, closing).where(F.col("period").isin(*due.closed))
        tasks = used.repartitionByRange(parts, "customer").mapInArrow(partial(stage_part, order=order), REPORT_SCHEMA)
        reports = tasks.collect()
    except (PySparkException, Py4JJavaError) as error:
        raise find_damage(closing.journal.root.parent) or LedgerError(
            f"Spark's tasks could not close at position {order.position}: {str(error).splitlines()[0][:200]}",
            retry_helps=True,
        ) from error
    staged = Staged([], 0)
    for row in reports:
        staged += msgspec.json.decode(bytes(row[0]), type=Staged)
    return staged


def used_rows(spark: SparkSession, closing: Closing) -> DataFrame:
    """What was used, by the period it is billed in: the snapshot and the entries since."""
    own_month = (F.year("day") * 12 + F.month("day") - 1).cast("int").alias("own_month")
    since = closing.journal.entry_files(after=closing.snapshot.batch, upto=closing.upto)
    parts = [_billed(spark, closing, since)] if since else []
    if closing.snapshot.root is not None and closing.snapshot.files:
        micros = F.col("sum_micros").cast("decimal(38,0)").alias("micros")
        rows = _rows(spark, closing.snapshot.root, closing.snapshot.files, BALANCE)
        parts.append(rows.select("period", "customer", own_month, "type", micros, "event_count"))
    return reduce(DataFrame.unionByName, parts)


def _billed(spark: SparkSession, closing: Closing, files: list[LedgerFile]) -> DataFrame:
    """The entries since the snapshot, each with the period that it is billed in."""
    after = closing.snapshot.batch
    facts, ends = (closing.connection.table(name).to_arrow_table() for name in ("batch_facts", "period_ends"))
    rows = _rows(spark, closing.journal.root, files, ENTRY)
    entries = rows.where((F.col("batch") > after) & (F.col("batch") <= closing.upto))
    is_final = F.col("end_us") <= F.col("final_before_us")
    return (
        entries.withColumn("own_month", F.year("day") * 12 + F.month("day") - 1)
        .join(F.broadcast(spark.createDataFrame(facts)), on="batch", how="inner")
        .join(F.broadcast(spark.createDataFrame(ends)), on="own_month", how="inner")
        .select(
            F.when(is_final, F.col("watermark_period")).otherwise(F.col("period")).alias("period"),
            "customer",
            F.col("own_month").cast("int").alias("own_month"),
            "type",
            F.col("amount_micros").cast("decimal(38,0)").alias("micros"),
            "event_count",
        )
    )


def _rows(spark: SparkSession, root: Place, files: list[LedgerFile], schema: pa.Schema) -> DataFrame:
    """The rows of some files of a table, whose footers were checked. Spark itself reads a disk, and checks the pages;
    a bucket is read by its tasks.
    """
    if root.is_local:
        return spark.read.parquet(*((root / file.path).inside for file in files))
    tasks = min(len(files), READING_TASKS * spark.sparkContext.defaultParallelism)
    numbers = spark.range(0, len(files), 1, tasks)
    return numbers.mapInArrow(partial(read_files, root=root, files=files, schema=schema), from_arrow_schema(schema))


def read_files(
    numbers: Iterable[pa.RecordBatch], root: Place, files: list[LedgerFile], schema: pa.Schema
) -> Iterable[pa.RecordBatch]:
    """The body of mapInArrow: the numbers of files come in, their rows go out."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            path, rows, _ = files[number]
            yield from read_batches(root / path, schema, rows, schema.names, batch_rows=READING_ROWS)


def stage_part(batches: Iterable[pa.RecordBatch], order: Order) -> Iterable[pa.RecordBatch]:
    """The body of mapInArrow: what a range of customers used comes in, one report goes out."""
    from pyspark import TaskContext

    kept = [batch for batch in batches if batch.num_rows]
    if not kept:
        return
    context = TaskContext.get()
    part = context.partitionId() if context else 0
    with connect(threads=1, memory_limit=MEMORY_LIMIT) as connection:
        connection.register("used", pa.Table.from_batches(kept))
        connection.execute(f"create temp table lines as {LINES.format(wanted='true')}")
        connection.register("issued", ISSUED.empty_table())
        chunks = issue_over(connection, currency=order.currency, position=order.position, issued_us=order.issued_us)
        staged = stage_invoices([pa.concat_tables(chunks)], order, part=part)
    yield pa.record_batch({"report": pa.array([msgspec.json.encode(staged)], pa.binary())})
