"""The ledger's SQL on Spark: every closing, revision and snapshot of the pipeline is a Spark job.

The tasks read the ledger's files through its own reader, which checks every page and every footer; what they stage
counts only if the driver commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from opentab.core.errors import DiskFull, LedgerBug, QueryFailed, means_disk_full
from opentab.ledger.engine import Task
from opentab.runtime.spark_inside import reason_of, told_by_task
from opentab.runtime.storage import Place
from opentab.tables.files import LedgerFile, read_batches

POOL = "closing"  # of its own: the stream's tasks take turns with ours instead of waiting for all of them
PARTITION_ROWS = 500_000  # of a shuffle, where it needs more partitions than there are cores
READING_TASKS = 4  # a core
READING_ROWS = 65_536
ANSWERS = "number bigint, answer binary"


class SparkEngine:
    """A session of its own over a Spark that may do other work at the same time."""

    def __init__(self, spark: SparkSession, what: str, rows: int, *, tag: str = POOL) -> None:
        self._session = spark.newSession()  # views are shared within a session
        self._context = spark.sparkContext
        self._cores = self._context.defaultParallelism
        self._context.setLocalProperty("spark.scheduler.pool", POOL)
        self._context.setJobDescription(what)
        self._tag = tag  # of its jobs, for whoever cancels them
        self._context.addJobTag(tag)
        # Spark's default of 200 would cost a closing of nine customers several seconds.
        self._session.conf.set("spark.sql.shuffle.partitions", max(self._cores, rows // PARTITION_ROWS + 1))

    def files(
        self, name: str, root: Place, files: Sequence[LedgerFile], schema: pa.Schema, *,
        columns: Sequence[str] | None = None, where: str = "true",
    ) -> None:  # fmt: skip
        wanted = schema if columns is None else pa.schema([schema.field(column) for column in columns])
        if not files:
            self.table(name, wanted.empty_table())
            return
        numbers = self._session.range(0, len(files), 1, min(len(files), READING_TASKS * self._cores))
        read = partial(read_files, root=root, files=list(files), schema=schema, columns=wanted.names)
        rows = numbers.mapInArrow(read, self._session.createDataFrame(wanted.empty_table()).schema)
        rows.where(where).createOrReplaceTempView(name)

    def table(self, name: str, table: pa.Table) -> None:
        frame: DataFrame = self._session.createDataFrame(table)
        F.broadcast(frame).createOrReplaceTempView(name)

    def view(self, name: str, sql: str) -> None:
        self._session.sql(sql).createOrReplaceTempView(name)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with _failures():
            table = self._session.sql(sql).toArrow()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def work(self, sql: str, task: Task, *, parts: int, order: Sequence[str]) -> list[bytes]:
        rows = self._session.sql(sql)
        by = [F.desc(name.removesuffix(" desc")) if name.endswith(" desc") else F.asc(name) for name in order]
        return list(_answers(rows.sortWithinPartitions(*by).mapInArrow(partial(run_task, task=task), ANSWERS)).values())

    def each(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        numbers = self._session.range(0, count, 1, count)
        found = _answers(numbers.mapInArrow(partial(run_each, task=task), ANSWERS))
        if list(found) != list(range(count)):
            raise LedgerBug(f"of {count} tasks only {sorted(found)} have answered")
        return list(found.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._context.removeJobTag(self._tag)
        self._context.setJobDescription(None)  # type: ignore[arg-type]
        self._context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def read_files(
    numbers: Iterable[pa.RecordBatch], root: Place, files: Sequence[LedgerFile], schema: pa.Schema,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The body of mapInArrow: the numbers of files come in, their rows go out."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            path, rows, period = files[number]
            if period is None:
                yield from read_batches(root / path, schema, rows, columns, batch_rows=READING_ROWS)
                continue
            # The directory says the period of all rows.
            own = schema.remove(schema.get_field_index("period"))
            inside = [name for name in columns if name != "period"]
            for part in read_batches(root / path, own, rows, inside, batch_rows=READING_ROWS):
                told = part.append_column("period", pa.array([period] * part.num_rows, pa.string()))
                yield told.select(list(columns))


def run_task(rows: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: a range of customers comes in, the task's answer goes out."""
    context = TaskContext.get()
    part = context.partitionId() if context else 0
    answer = task(part, rows)
    if answer is not None:
        yield _row(part, answer)


def run_each(numbers: Iterable[pa.RecordBatch], task: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: numbers come in, the answers of a task to each go out."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield _row(number, task(number))


def _row(number: int, answer: bytes) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number], pa.int64()), "answer": pa.array([answer], pa.binary())})


def _answers(rows: DataFrame) -> dict[int, bytes]:
    """What the tasks answered, by their numbers and in that order.

    Not by collect(): it takes the end of a connection for the end of the rows, and so a part for the whole.
    """
    with _failures():
        table = rows.toArrow()
    return dict(sorted(zip(table["number"].to_pylist(), table["answer"].to_pylist(), strict=True)))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if means_disk_full(error):
            raise DiskFull("the ledger, or of Spark's scratch files") from error
        reason = f"a Spark task failed: {reason_of(error)}"
        raise told_by_task(error) or QueryFailed(reason, retry_helps=True) from error
