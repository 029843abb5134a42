"""Every event counts once: any interleaving of events and repeats, cut into any batches and tasks."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import batch_of_segments, log_of, names_of, new_home, open_job
from opentab.audit.murmur import murmur
from opentab.audit.verify import verify
from opentab.dedupe import index, sorted_runs
from opentab.dedupe.bloom import Probe, bloom_filter
from opentab.dedupe.lookup import KeyLookup
from opentab.ledger.journal import Journal
from opentab.ledger.receipt import Trails
from opentab.ledger.rejections import rejection_rows
from opentab.ledger.totals import customer_totals
from opentab.log import Producer
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.runtime.storage import Place
from opentab.tables.files import StagedFile
from opentab.wire.byte_columns import Texts
from opentab.wire.hashing import key_of, keys_of, ordered, payloads_of

START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE_US = 60_000_000


@dataclass(frozen=True)
class Sent:
    """One input: who it says it is, what it says, and when and where it came."""

    id: str | None
    amount: int  # in units
    customer: str = "emma"
    source: str | None = None
    reverses: str | None = None
    partition: str = "a"
    minute: int = 0

    def line(self) -> str:
        event: dict[str, object] = {"type": "CALL", "amount": str(self.amount)}
        if self.reverses is not None:
            event |= {"reverses": self.reverses, "reason": "a mistake", "actor": "ann"}
        if self.source is not None:
            outer = {
                "specversion": "1.0",
                "source": self.source,
                "subject": self.customer,
                "type": "usage",
                "data": event,
            }
        else:
            outer = event | {"customer": self.customer}
        return json.dumps(outer | {"time": "2026-01-15T12:00:00Z"} | ({"id": self.id} if self.id is not None else {}))


@dataclass
class Rule:
    """ADR 16 once more, as plainly as it can be said."""

    window_us: int
    counted: dict[tuple[str | None, str], tuple[int, object, int]] = field(default_factory=dict)
    reversed: dict[tuple[str | None, str], int] = field(default_factory=dict)
    total: Counter[str] = field(default_factory=Counter)
    events: int = 0
    duplicates: int = 0
    rejections: Counter[str] = field(default_factory=Counter)

    def bill(self, batch: int, inputs: list[tuple[int, str, int, int, Sent]]) -> None:
        before = dict(self.counted)
        for arrived_us, _, _, _, sent in sorted(inputs, key=lambda row: row[:4]):
            values = (sent.customer, sent.amount, (sent.source, sent.reverses) if sent.reverses else None)
            key = (sent.source, sent.id) if sent.id else None
            last = self.counted.get(key) if key else None
            if last is not None and arrived_us - last[0] <= self.window_us:
                if last[1] == values:
                    self.duplicates += 1
                else:
                    self.rejections["conflicting_duplicate"] += 1
                continue
            amount = sent.amount
            if sent.reverses:
                original = (sent.source, sent.reverses)
                found = before.get(original)
                if found is None or arrived_us - found[0] > self.window_us:
                    self.rejections["reversal_unknown"] += 1
                    continue
                if found[1] != (sent.customer, sent.amount, None):
                    self.rejections["reversal_mismatch"] += 1
                    continue
                if self.reversed.get(original, 0) > found[2]:
                    self.rejections["reversal_twice"] += 1
                    continue
                self.reversed[original] = batch
                amount = -amount
            if key:
                self.counted[key] = (arrived_us, values, batch)
            self.total[sent.customer] += amount
            self.events += 1


class Crash(Exception):
    """The process dies here."""


@contextmanager
def dying_at(name: str | None) -> Iterator[None]:
    def moment(now: str) -> None:
        if now == name:
            raise Crash(now)

    with patch.object(crash, "moment", moment), suppress(Crash):
        yield


def bill_history(
    path: Path, batches: Sequence[tuple[int, list[Sent]]], *, window: str, deaths: Sequence[str | None] = ()
) -> tuple[Home, Rule]:
    """Bill batches of inputs, each with so many tasks, dying now and then, and hold them against the rule."""
    home = new_home(
        path / "home", f'[billing]\nout_of_orderness = "1d"\nallowed_lateness = "2d"\ndedupe_window = "{window}"\n'
    )
    rule = Rule(home.rules.dedupe_us)
    for number, (tasks, inputs) in enumerate(batches, start=1):
        job = open_job(home, f"run{number}")
        placed = []
        by_segment: dict[tuple[str, int], list[Sent]] = {}
        for sent in inputs:
            by_segment.setdefault((sent.partition, sent.minute), []).append(sent)
        for (partition, minute), sents in sorted(by_segment.items(), key=lambda item: item[0]):
            producer = Producer(log_of(job), partition, clock=lambda minute=minute: START + timedelta(minutes=minute))
            segment = producer.append("".join(f"{sent.line()}\n" for sent in sents).encode())
            arrived_us = log_of(job).header(partition, segment).arrived_us
            placed += [(arrived_us, partition, segment, at, sent) for at, sent in enumerate(sents)]
        unread = log_of(job).unread(job.offsets)
        if not unread:
            continue
        with dying_at(deaths[number - 1] if number <= len(deaths) else None):
            job.bill(batch_of_segments(job, names_of(log_of(job), unread, 1000), tasks))
            job.journal.compact(run=f"merge{number}", files_max=2)
        job = open_job(home, f"again{number}")
        if unread := log_of(job).unread(job.offsets):
            job.bill(batch_of_segments(job, names_of(log_of(job), unread, 1000), tasks))
        assert job.last is not None
        rule.bill(job.last.batch, placed)
        assert sum(record.event_count for record in job.journal.batches()) == rule.events
    return home, rule


def check(home: Home, rule: Rule) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    records = journal.batches()
    assert sum(record.duplicates for record in records) == rule.duplicates
    assert Counter(row["reason"] for row in rejection_rows(journal)) == rule.rejections
    totals = {total.customer: total.amount_micros // 1_000_000 for total in customer_totals(journal, home.calendar)}
    assert totals == dict(rule.total)
    report = verify(home, journal)
    assert report.agrees, [sample for check in report.checks for sample in check.samples]
    return journal


ids = st.sampled_from(["x", "y", "z", None])
sents = st.builds(
    Sent,
    id=ids,
    amount=st.integers(1, 2),
    customer=st.sampled_from(["emma", "ann"]),
    source=st.sampled_from([None, None, "s"]),
    reverses=st.sampled_from([None, None, None, "x", "y"]),
    partition=st.sampled_from(["a", "b"]),
    minute=st.integers(0, 30),
)
histories = st.lists(st.tuples(st.integers(1, 3), st.lists(sents, max_size=8)), min_size=1, max_size=5)


MOMENTS = [None, None, "taken", "staged", "committed", "archived", "compacting", "compacted"]
WAYS = ["read", "mapped", "copied"]  # runs are small, or large and kept when written, or copied when asked for


@examples(40)
@given(
    histories,
    st.sampled_from(["unbounded", "7d", "10m", "1ms"]),
    st.lists(st.sampled_from(MOMENTS), max_size=5),
    st.sampled_from(WAYS),
)
@example([(2, [Sent("x", 1), Sent("x", 1, partition="b")])], "7d", [], "read")
@example([(2, [Sent("x", 1), Sent("x", 1, partition="b")])], "7d", [], "mapped")
@example(
    [(2, [Sent("x", 1), Sent("x", 1, minute=9, partition="b")]), (2, [Sent("x", 1, minute=0)])], "30m", [], "mapped"
)
@example([(2, [Sent("x", 1), Sent("y", 1)]), (2, [Sent("x", 1)]), (2, [Sent("y", 1)])], "7d", [], "copied")
@example([(2, [Sent("x", 1), Sent("x", 2, partition="b")])], "7d", [], "read")
@example(
    [(2, [Sent("x", 1)]), (2, [Sent(None, 1, reverses="x"), Sent(None, 1, reverses="x", partition="b")])],
    "7d", [], "read",
)  # fmt: skip
@example([(2, [Sent("x", 1), Sent("x", 1, minute=12), Sent("x", 1, minute=10, partition="b")])], "5m", [], "read")
@example(
    [(2, [Sent("x", 1, minute=3), Sent("x", 1, minute=7), Sent("x", 1, minute=0, partition="b")])], "5m", [], "read"
)
@example(
    [
        (2, [Sent("x", 1, customer="ann")]),
        (2, [Sent(None, 1, customer="ann", reverses="x"), Sent(None, 1, reverses="x", minute=9, partition="b")]),
    ],
    "7d", [], "read",
)  # fmt: skip
def test_any_history_gives_the_bill_of_distinct_events(
    history: list[tuple[int, list[Sent]]], window: str, deaths: list[str | None], way: str
) -> None:
    minute = 0
    later = []
    for tasks, inputs in history:  # batches take what came before what the next one takes
        later.append((tasks, [Sent(**{**sent.__dict__, "minute": minute + sent.minute}) for sent in inputs]))
        minute += 31
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        stack.enter_context(patch.object(sorted_runs, "TIER_RUNS", 2))
        if way in ("mapped", "copied"):
            stack.enter_context(patch.object(index, "MAPPED_ROWS", 1))
            stack.enter_context(patch.object(sorted_runs, "ROW_GROUP_ROWS", 2))
        if way == "copied":
            stack.enter_context(patch.object(index.DedupeIndex, "keep", lambda *_: None))
        check(*bill_history(Path(directory), later, window=window, deaths=deaths))


def test_off_counts_everything(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", '[billing]\ndedupe_window = "off"\n')
    job = open_job(home, "run")
    lines = [Sent("x", 1).line(), Sent("x", 1).line(), Sent(None, 1, reverses="x").line()]
    Producer(log_of(job), "a").append("\n".join(lines).encode())
    record = job.bill(batch_of_segments(job, names_of(log_of(job), log_of(job).unread({}), 9), 1))
    assert (record.event_count, record.duplicates) == (2, 0)
    assert record.rejections == {"reversal_unknown": 1}  # nothing is remembered
    report = verify(home, job.journal)
    assert report.agrees, [sample for check in report.checks for sample in check.samples]
    assert job.journal.runs() == []


@pytest.mark.slow
def test_runs_are_merged_in_tiers_and_forget(tmp_path: Path) -> None:
    """Their number stays small, and what the window has passed is dropped."""
    batches = [(1, [Sent(f"{n}-{k}", 1, minute=n) for k in range(3)]) for n in range(40)]
    home, rule = bill_history(tmp_path, batches, window="10m")
    journal = check(home, rule)
    assert len(journal.runs()) < 2 * sorted_runs.TIER_RUNS
    rows = sum(run.rows for run in journal.runs())
    assert rows < 3 * 40
    keys = pa.concat_tables([journal.seen().to_table()])["key_high"].to_pylist()
    assert len(set(keys)) == len(keys)


@pytest.mark.slow
def test_large_runs_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAPPED_ROWS", 2)
    monkeypatch.setattr(sorted_runs, "SLICE_ROWS", 3)
    batches = [(2, [Sent(f"{k}", 1, minute=n, partition="ab"[k % 2]) for k in range(n, n + 5)]) for n in range(20)]
    home, rule = bill_history(tmp_path, batches, window="unbounded")
    check(home, rule)
    assert rule.events == 24


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
@example([-(2**63), -1, 0, 2**63 - 1], [-(2**63), 2**63 - 1])
def test_marks_never_deny_a_key(held: list[int], strange: list[int]) -> None:
    words = np.sort(np.array(held, np.int64))
    asked = np.sort(np.array(held + strange, np.int64))
    found = set(asked[Probe(asked).may_be_in(bloom_filter(words))].tolist())
    assert set(held) <= found


@pytest.mark.parametrize("rows", [66_000, 131_000])
def test_marks_spare_nearly_all_searches(rows: int) -> None:
    dice = np.random.default_rng(1)
    held, strange = (np.sort(dice.integers(-(2**63), 2**63 - 1, rows)) for _ in range(2))
    assert len(Probe(strange).may_be_in(bloom_filter(held))) < 0.003 * rows


@pytest.mark.parametrize("mapped_rows", [1, 10])
def test_of_two_tasks_the_one_that_has_the_first_is_on_the_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped_rows: int
) -> None:
    monkeypatch.setattr(index, "MAPPED_ROWS", mapped_rows)
    inputs = [Sent("x", 1, minute=2), Sent("y", 1), Sent("x", 1, minute=1, partition="b"), Sent("z", 1, partition="b")]
    journal = check(*bill_history(tmp_path, [(2, inputs)], window="7d"))
    last = journal.last()
    assert len(journal.runs()) == 2  # as the tasks have written them
    with closing(KeyLookup(journal.root)) as remembered:
        trail = Trails(journal, remembered).of("x", None, upto=last)
    assert [one.spot.partition for one in trail.counted] == ["b"]
    assert trail.rejections == []


def test_what_is_at_hand_does_not_outlive_a_start_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(index, "MAPPED_ROWS", 1)
    root = Place.of(tmp_path / "journal")
    row = pa.table([[1], [2], [3], [4], [5], ["a"], [6], [7]], schema=sorted_runs.SEEN)
    for boot in ("one", "two"):
        monkeypatch.setattr(index, "_boot", lambda boot=boot: boot)
        index.DedupeIndex(root).keep(StagedFile("seen", f"{boot}.parquet", 1, 0, 1, 1), row)
        for scratch in tmp_path.glob("opentab-*/opentab-seen-*"):
            os.utime(scratch, (0, 0))  # long ago
    (left,) = tmp_path.glob("opentab-*/opentab-seen-*")
    assert left.name.endswith("-two")
    assert {path.name.removeprefix("two.parquet.") for path in left.iterdir()} == {"columns.npy", "bloom.npy", "crc"}


def test_a_flipped_bit_in_a_scratch_copy_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(index, "MAPPED_ROWS", 1)
    batches = [(1, [Sent(f"{k}", 1, minute=k) for k in range(9)])]
    home, rule = bill_history(tmp_path, batches, window="unbounded")
    journal = check(home, rule)
    expected = [column.tolist() for column in index.DedupeIndex(journal.root).load(journal.runs())[0]]
    copies = sorted(tmp_path.glob("opentab-*/opentab-seen-*/*"))
    assert copies
    for scratch in copies:
        size = scratch.stat().st_size
        for place in random.Random(1).sample(range(size), k=min(size, 16)):
            data = bytearray(scratch.read_bytes())
            data[place] ^= 1 << place % 8
            scratch.write_bytes(data)
            (found,) = index.DedupeIndex(journal.root).load(journal.runs())
            assert [column.tolist() for column in found] == expected, (scratch.name, place)


word = st.integers(-(2**63), 2**63 - 1)
near = st.builds(lambda upper, lower: (upper << 40) + lower, st.integers(-2, 2), st.integers(0, 3))


@given(st.lists(word | near, max_size=60))
@example([0] * 3 + [-1, 2**63 - 1, -(2**63)])
def test_hashes_are_put_in_order(hashes: list[int]) -> None:
    words = np.array(hashes, np.int64)
    order, found = ordered(words)
    assert order.tolist() == np.argsort(words, kind="stable").tolist()
    assert found.tolist() == sorted(hashes)


def test_hashes_that_begin_alike_are_put_in_order_too() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 20_000) + (7 << 40)
    order, found = ordered(words)
    assert np.array_equal(order, np.argsort(words, kind="stable"))
    assert np.array_equal(found, np.sort(words))


def test_keys_are_murmur3() -> None:
    """By its published values, whatever the length, alone or among others."""
    texts = {"": (0, 0), "hello": (0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19), "hello, world": (0x342FAC623A5EBC8E, 0x4CDCBC079642414D),
             "The quick brown fox jumps over the lazy dog": (0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347)}  # fmt: skip
    high, low = keys_of(list(texts))
    assert [(one % 2**64, two % 2**64) for one, two in zip(high.tolist(), low.tolist(), strict=True)] == list(
        texts.values()
    )


@given(st.lists(st.text(max_size=80), max_size=8), st.integers(0, 3))
def test_a_key_does_not_depend_on_its_company(texts: list[str], seed: int) -> None:
    high, low = keys_of(texts, seed)
    for at, text in enumerate(texts):
        alone = keys_of([text], seed)
        assert (high[at], low[at]) == (alone[0][0], alone[1][0])


of_one_length = st.integers(0, 70).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1))


@given(of_one_length)
def test_ids_of_one_length_have_the_keys_that_the_audit_gives_them(texts: list[bytes]) -> None:
    high, low = keys_of(Texts.of(texts))
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [murmur(text, 0) for text in texts]


def test_sources_and_reversals_have_keys_of_their_own() -> None:
    keys = {
        key_of("a"),
        key_of("a", "s"),
        key_of("a", ""),
        key_of("as", ""),
        key_of("", "as"),
        key_of("a", reversal=True),
    }
    keys |= {key_of("a", "s", reversal=True), key_of("x" * 600), key_of("x" * 600, "s"), key_of("x" * 601)}
    assert len(keys) == 10


def test_payloads_differ_with_each_value() -> None:
    def payload(at_us: int = 1, amount: int = 1, customer: str = "emma", kind: str = "CALL") -> int:
        columns = (np.array([at_us]), np.array([amount]), pa.array([customer]))
        return int(payloads_of(*columns, ["MISC", kind], np.array([1]))[0])

    values = [
        payload(),
        payload(at_us=2),
        payload(amount=2),
        payload(customer="emmb"),
        payload(kind="DATA"),
        payload(2, 1),
        payload(1, 2),
    ]
    assert len(set(values)) == 5
    assert payload() == payload()
