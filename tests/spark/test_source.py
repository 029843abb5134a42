"""A source of one's own, on one's own Spark session; what rows must be; and ids that two tasks take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opentab
from ledgers import new_home
from opentab.billing.cross_task import Repeats
from opentab.billing.log_batch import SparkBatch, ranges_of_rows
from opentab.billing.run import Pipeline
from opentab.billing.source import read_rows
from opentab.billing.task import LogRange, TaskResult
from opentab.core.errors import LogMismatch, OpentabError, TasksFailed
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.runtime.config import Home, load
from processes import check_exact
from product import event, json_lines
from product import opentab as run_opentab

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
AT = datetime(2026, 1, 20, 12, tzinfo=UTC)


def with_id(id_: str, amount: str = "1.00", customer: str = "emma") -> str:
    return json.dumps({"id": id_, **json.loads(event(customer, amount))})


class Table:
    """A table of raw events that another job adds to, and the source that the page shows for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0
        path.mkdir()

    def add(self, *rows: tuple[str, int, str]) -> None:
        names, offsets, values = zip(*rows, strict=True)
        columns = {
            "partition": pa.array(names),
            "offset": pa.array(offsets, pa.int64()),
            "arrived_at": pa.array([AT] * len(rows), pa.timestamp("us", tz="UTC")),
            "value": pa.array(values),
        }
        self._files += 1
        pq.write_table(pa.table(columns), self.path / f"{self._files}.parquet")

    @property
    def source(self) -> Any:
        code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
        names: dict[str, Any] = {"__name__": "notebook"}
        exec(code, names)
        return names["TableSource"](self.path)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def batches_of(home: Home) -> Sequence[BatchRecord]:
    journal = Journal.open(home.ledger, home.identity)
    return [] if journal is None else journal.batches()


def totals(home: Home) -> dict[str, object]:
    return {
        str(row["customer"]): row["total"]
        for row in json_lines(run_opentab("totals", "--format", "json", home=home).stdout)
    }


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Repeats | None]]:
    """What Spark tasks said of ids that two tasks took."""
    answers: list[Repeats | None] = []
    settle = SparkBatch.settle

    def noting(batch: SparkBatch, *args: Any) -> Repeats | None:
        answers.append(settle(batch, *args))
        return answers[-1]

    monkeypatch.setattr(SparkBatch, "settle", noting)
    yield answers


def test_the_source_of_the_page_is_billed_on_a_session_of_ones_own(
    tmp_path: Path, table: Table, spark: Any, settled: list[Repeats | None]
) -> None:
    home = tmp_path / "home"
    before = dict(spark.conf.getAll)
    table.add(*(("a", n, with_id(f"a{n}")) for n in range(3)), ("b", 0, event("zoe", "0.50")))
    first = opentab.run(home, spark=spark, source=table.source, once=True)
    assert (first.batches, first.events, first.unit) == (1, 4, "rows")
    assert opentab.run(str(home), spark=spark, source=table.source, once=True).batches == 0

    # Rows that the journal holds come again with each start, and are dropped. An id comes twice, in two files.
    table.add(("a", 3, with_id("again", "10.00")), ("a", 4, "not json"))
    table.add(("b", 1, with_id("again", "10.00")))
    second = opentab.run(home, spark=spark, source=table.source, once=True)
    assert (second.events, second.rejections) == (1, 1)
    assert [answer and answer.count for answer in settled] == [1]
    records = batches_of(load(home))
    assert [dict(record.taken) for record in records] == [{"a": (1, 3), "b": (1, 1)}, {"a": (4, 5), "b": (2, 2)}]
    assert totals(load(home)) == {"emma": "13.000000", "zoe": "0.500000"}
    assert dict(spark.conf.getAll) == before
    assert spark.range(3).count() == 3


def test_without_lines_one_task_settles_ids_that_two_tasks_took(
    tmp_path: Path, table: Table, spark: Any, settled: list[Repeats | None]
) -> None:
    source = table.source
    del type(source).lines
    table.add(("a", 0, with_id("x", "10.00")))
    table.add(("b", 0, with_id("x", "10.00")))
    progress = opentab.run(tmp_path / "home", spark=spark, source=source, once=True)
    assert (progress.events, settled) == (1, [None])
    assert totals(load(tmp_path / "home")) == {"emma": "10.000000"}


def test_a_batch_that_leaves_rows_out_is_refused(tmp_path: Path, table: Table, spark: Any) -> None:
    table.add(("a", 0, event()), ("a", 2, event()))
    with pytest.raises(OpentabError, match=r"'a' must go on with offset 0, each offset once.* has 0 to 0, 2 to 2"):
        opentab.run(tmp_path / "home", spark=spark, source=table.source, once=True)
    assert not batches_of(load(tmp_path / "home"))


def test_a_ledger_is_billed_from_one_source(tmp_path: Path, table: Table, spark: Any) -> None:
    home = tmp_path / "home"
    table.add(("a", 0, event()))
    opentab.run(home, spark=spark, source=table.source, once=True)
    refused = run_opentab("run", "--once", home=home, check=False)
    assert "a source of its own" in refused.stderr and "opentab.run(home, source=…)" in refused.stderr
    other = Table(tmp_path / "other")
    other.add(("a", 0, event()))
    with pytest.raises(LogMismatch, match=r"but the source is log source:.*other"):
        opentab.run(home, spark=spark, source=other.source, once=True)
    assert len(batches_of(load(home))) == 1


def test_the_audit_says_that_it_cannot_read_a_source_of_ones_own(tmp_path: Path, table: Table, spark: Any) -> None:
    home = tmp_path / "home"
    table.add(("a", 0, with_id("x")))
    opentab.run(home, spark=spark, source=table.source, once=True)
    verdict = run_opentab("verify", home=home, check=False)
    assert verdict.returncode == 1
    assert f"their log, '{table.path}', is a source of its own that the audit cannot read" in verdict.stdout
    receipt = json_lines(run_opentab("receipt", "x", "--format", "json", home=home).stdout)[0]
    assert (receipt["state"], receipt["customer"]) == ("counted", None)


def test_a_spark_task_settles_what_two_tasks_took_of_segments(
    tmp_path: Path, spark: Any, settled: list[Repeats | None]
) -> None:
    home = new_home(tmp_path / "home")
    producer = Producer(DirectoryLog(home.log_path))
    for customer in ("emma", "zoe"):
        lines = [with_id(f"{customer}-{n}", customer=customer) for n in range(50)]
        producer.append("\n".join([*lines, with_id("both", "10.00"), ""]).encode())
    progress = Pipeline(home, once=True, spark=spark).run()
    assert [answer and (answer.count, answer.sum_micros) for answer in settled] == [(1, "10000000")]
    (record,) = [record for record in batches_of(home) if record.event_count]
    assert sum(record.tasks.values()) == 2
    assert (progress.events, record.duplicates, record.amount_micros) == (101, 1, 110_000_000)
    check_exact(home)


# What rows must be


def rows_of(*offsets: int, names: Sequence[str] = ()) -> pa.RecordBatch:
    values = [f"{offset}".encode() for offset in offsets]
    at = pa.array([AT] * len(offsets), pa.timestamp("us", tz="UTC"))
    columns = [list(names) or ["a"] * len(offsets), pa.array(offsets, pa.int64()), at, values]
    return pa.record_batch(columns, names=["partition", "offset", "arrived_at", "value"])


def ranges_in(*batches: pa.RecordBatch, skips_offsets: bool = False) -> list[tuple[str, int, int, list[bytes]]]:
    found = read_rows(batches, skips_offsets=skips_offsets)
    return [(block.partition, block.begin, block.end, list(block.lines)) for block in found]


def test_rows_are_read_partition_by_partition_in_the_order_of_their_offsets() -> None:
    assert ranges_in(rows_of(1, 0, 0, 2, names="abab"[:4])) == [
        ("a", 0, 2, [b"0", b"1"]),
        ("b", 0, 1, [b"0"]),
        ("b", 2, 3, [b"2"]),
    ]
    assert ranges_in(rows_of()) == []


def test_where_offsets_may_be_missing_rows_are_read_as_they_come() -> None:
    assert ranges_in(rows_of(3, 5, 9), skips_offsets=True) == [("a", 3, 10, [b"3", b"5", b"9"])]


def result(*ranges: tuple[int, int]) -> TaskResult:
    return TaskResult([], {"a": LogRange(list(ranges), None, 0, 0)}, 0, "0", 0, 0, "0", {}, {})


@pytest.mark.parametrize(
    ("ranges", "skips", "is_whole"),
    [
        ([[(2, 4)], [(4, 9)]], False, True),
        ([[(4, 9)], [(2, 4)]], False, True),
        ([[(2, 4)], [(5, 9)]], False, False),
        ([[(2, 4)], [(3, 9)]], False, False),
        ([[(3, 9)]], False, False),
        ([[(3, 9)]], True, True),
        ([[(2, 4)], [(5, 9)]], True, True),
        ([[(2, 4)], [(3, 9)]], True, False),
        ([[(1, 9)]], True, False),
    ],
)
def test_rows_must_go_on_where_the_journal_ends(
    ranges: list[list[tuple[int, int]]], skips: bool, is_whole: bool
) -> None:
    results = [result(*one) for one in ranges]
    found: Callable[[], Any] = lambda: ranges_of_rows(results, {"a": 2}, skips_offsets=skips)  # noqa: E731
    if is_whole:
        assert found() == {"a": (2, 9)}
    else:
        with pytest.raises(TasksFailed):
            found()
