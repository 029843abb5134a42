"""Replicas: after batch N they say what the journal up to N says, whatever happened to them on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from decimal import Decimal
from pathlib import Path

import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import bill, new_home
from opentab.billing.upkeep import keep_up
from opentab.closing.closer import Closer
from opentab.core.errors import FileDamaged, ReplicaDamaged, TotalTooLarge
from opentab.ledger import balances
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.totals import customer_totals
from opentab.replica import batches, blocks
from opentab.replica import follower as follower_module
from opentab.replica import row as row_module
from opentab.replica import top_customers as tops_module
from opentab.replica.cell import NEVER_US, cells_at, exact_sum, read_cell
from opentab.replica.follower import Follower, is_whole
from opentab.replica.name_order import Listed, in_order, merge
from opentab.replica.period_statistics import statistics_of
from opentab.replica.presence import present
from opentab.replica.probe import Dots, examine
from opentab.replica.row import CustomerRows, summed
from opentab.replica.store import FORMAT, PERIOD_BYTES, SEPARATOR, Snapshot, Store
from opentab.replica.top_customers import TopCustomers, with_totals
from opentab.runtime import crash
from opentab.runtime.config import Home
from processes import wait_for
from product import event

SETTINGS = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "2d"\n'


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def wanted(home: Home) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """(period, customer, own period, type) -> micros, events; as `opentab totals` adds them up."""
    sums = {}
    for total in customer_totals(journal_of(home), home.calendar):
        for type_, micros in total.types.items():
            sums[total.period, total.customer, total.period, type_] = micros
        for adjustment in total.adjustments:
            key = (total.period, total.customer, adjustment.period, adjustment.type)
            sums[key] = adjustment.amount_micros
    return sums


def held(follower: Follower) -> dict[tuple[str, str, str, str], int]:
    """The same, as the replica holds it; its other tables must follow from it."""
    sums: dict[tuple[str, str, str, str], int] = {}
    with follower.store.read() as snapshot:
        meta = snapshot.meta()
        types = meta.types if meta else []
        customers: Counter[str] = Counter()
        adjusted: dict[str, int] = {}
        periods = sorted({key[:PERIOD_BYTES] for key, _ in snapshot.scan_blocks(b"")})
        for period, customer, row in ((p, *found) for p in periods for found in blocks.scan(snapshot, p)):
            assert blocks.find(snapshot, period, customer) == row
            cells, _ = row
            name = (period + customer).decode()
            customers[name[:7]] += 1
            if cells[0][1]:
                adjusted[name] = cells[0][0]
            for type_, (micros, events) in zip(types, cells[1:], strict=False):
                if events:
                    sums[name[:7], name[7:], name[:7], type_] = micros
        found: Counter[str] = Counter()
        for key, value in snapshot.scan("adjustments", b""):
            front, _, back = key.decode().partition(SEPARATOR)
            sums[front[:7], front[7:], back[:7], back[7:]] = read_cell(value)[0]
            found[front] += read_cell(value)[0]
        assert dict(found) == adjusted, "a row knows the sum of its adjustments"
        for table, parts in (("types", (2, 3)), ("periods", (0,))):
            assert amounts(snapshot, table) == added_up(sums, parts), table
        days: Counter[str] = Counter()
        for name, micros in amounts(snapshot, "days").items():
            days[name[:7] + name[10:]] += micros
        assert dict(days) == amounts(snapshot, "types")
        for period, count in customers.items():
            facts = statistics_of(snapshot, period)
            assert facts.customers == count
            of_others = sum(micros for line, micros in sums.items() if line[0] == period != line[2])
            assert int(facts.adjusted_micros) == of_others
    return sums


def amounts(snapshot: Snapshot, table: str) -> dict[str, int]:
    return {key.decode(): read_cell(value)[0] for key, value in snapshot.scan(table, b"")}


def added_up(sums: dict[tuple[str, str, str, str], int], parts: tuple[int, ...]) -> dict[str, int]:
    folded: Counter[str] = Counter()
    for line, micros in sums.items():
        folded["".join(line[part] for part in parts)] += micros
    return dict(folded)


def dump(follower: Follower) -> list[tuple[str, bytes, bytes]]:
    with follower.store.read() as snapshot:
        tables = ("adjustments", "types", "days", "periods", "facts", "invoices", "batches")
        found = [(blocks.TABLE, key, value) for key, value in snapshot.scan_blocks(b"")]
        return found + [(table, key, value) for table in tables for key, value in snapshot.scan(table, b"")]


def catch_up(follower: Follower) -> int:
    steps = 0
    while follower.step() is not None:
        steps += 1
    return steps


def position(follower: Follower) -> tuple[int, int]:
    with follower.store.read() as snapshot:
        meta = snapshot.meta()
    return (meta.position, meta.invoices_position) if meta else (0, 0)


uses = st.tuples(
    st.sampled_from(["ann", "bob", "c/3", "emoji 🧾"]), st.integers(1, 100), st.integers(-(10**15), 10**15)
)
histories = st.lists(
    st.tuples(st.lists(uses, min_size=1, max_size=4), st.sampled_from(["", "look", "keep up", "both"])),
    min_size=1,
    max_size=7,
)


def line_of(use: tuple[str, int, int]) -> str:
    customer, day, micros = use
    month, number = divmod(day - 1, 28)
    return event(customer, f"{Decimal(micros) / 10**6:.6f}", f"2026-{month + 1:02d}-{number + 1:02d}T12:00:00Z")


@examples(15)
@given(histories)
def test_replicas_at_any_speed_say_what_the_journal_says(
    history: list[tuple[list[tuple[str, int, int]], str]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = new_home(Path(directory) / "home", SETTINGS + "[pipeline]\ncompact_files = 2\nsnapshot_batches = 2\n")
        quick = Follower(home)
        for batch, then in history:
            bill(home, *map(line_of, batch), close=False)
            if then in ("keep up", "both"):
                keep_up(journal_of(home), home, Closer(home, run="run"), run="run")
            if then in ("look", "both"):
                catch_up(quick)
                assert held(quick) == wanted(home)
        Closer(home, run="run").close_due(journal_of(home))
        catch_up(quick)
        assert held(quick) == wanted(home)
        quick_dump = dump(quick)
        quick_position = position(quick)
        quick.close()
        (home.path / "replica").rename(home.path / "quick")
        late = Follower(home)  # begins anew, from whatever balances there are
        catch_up(late)
        assert dump(late) == quick_dump
        assert position(late) == quick_position
        late.close()
        assert is_whole(home.replica_path)


int64s = st.integers(-(2**63), 2**63 - 1)


@examples(200)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), int64s | st.integers(-9, 9)), max_size=12),
        max_size=12,
    )
)
def test_tops_are_exact_whatever_rises_and_falls(rounds: list[list[tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"TOP": 3, "KEPT_MAX": 8, "KEPT_AFTER": 5}.items():
            patched.setattr(tops_module, name, value)
        totals: dict[str, int] = {}
        tops = TopCustomers(members={})
        for round_ in rounds:
            new = {f"c{number:02d}": micros for number, micros in round_}
            totals |= new
            names = sorted(new)
            listed = pa.array([name.encode() for name in names], pa.binary())
            tops = with_totals(tops, listed, np.array([new[name] for name in names], np.int64), iter(totals.items()))
            ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:3]
            assert tops.ordered() == ranked


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"), event("bob", "1.00", "2026-01-10T00:00:00Z"))
    bill(home, event("ann", "2.00", "2026-02-03T00:00:00Z"))
    return home


def test_invoices_come_with_their_position(home: Home) -> None:
    follower = Follower(home)
    catch_up(follower)
    assert position(follower) == (2, 2)
    with follower.store.read() as snapshot:
        keys = [key for key, _ in snapshot.scan("invoices", b"2026-01")]
    assert keys == [f"2026-01{name}{SEPARATOR}".encode() + b"\0\0\0\1" for name in ("ann", "bob")]
    bill(home, event("ann", "1.00", "2026-01-11T00:00:00Z"), revise=True, close=False)
    catch_up(follower)
    assert position(follower) == (3, 2), "the round at batch 3 is not out yet"
    Closer(home, run="run").close_due(journal_of(home))
    catch_up(follower)
    assert position(follower) == (3, 3)
    with follower.store.read() as snapshot:
        assert len(list(snapshot.scan("invoices", b"2026-01ann"))) == 2
    follower.close()


def test_only_the_last_batches_are_remembered(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCHES_MAX", 3)
    follower = Follower(home)
    catch_up(follower)
    for day in range(5, 8):
        bill(home, event("ann", "1.00", f"2026-01-{day:02d}T00:00:00Z"))
        catch_up(follower)
    with follower.store.read() as snapshot:
        known = list(batches.last_batches(snapshot, 5, 10))
        meta = snapshot.meta()
    assert [(one.batch, one.events, one.late_events) for one in known] == [(3, 1, 1), (4, 1, 1), (5, 1, 1)]
    assert meta is not None
    assert meta.late_events == 3
    follower.close()


def test_it_starts_from_the_balances(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    balances.write_snapshot(journal_of(home), home.calendar)
    bill(home, event("ann", "1.00", "2026-02-04T00:00:00Z"))
    follower = Follower(home)
    first = follower.step()
    assert first is not None
    assert (first.position, first.rebuilt) == (2, True)
    second = follower.step()
    assert second is not None
    assert (second.position, second.batches) == (3, 1)
    assert held(follower) == wanted(home)
    follower.close()


class Crash(Exception):
    """The process died here."""


@pytest.mark.parametrize("moment", ["folding", "folded"])
def test_a_crash_keeps_both_or_neither(home: Home, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    follower = Follower(home)

    def die(name: str) -> None:
        if name == moment:
            raise Crash

    monkeypatch.setattr(crash, "moment", die)
    for _ in range(3):
        with pytest.raises(Crash) if moment == "folding" else suppressed():
            follower.step()
        follower.close()
        monkeypatch.setattr(crash, "moment", die)
        follower = Follower(home)
    monkeypatch.undo()
    catch_up(follower)
    assert held(follower) == wanted(home)
    follower.close()


class suppressed:  # noqa: N801
    """Takes a crash, and no crash, for granted."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is Crash


FOLLOW = """
import sys
from pathlib import Path
from opentab import config
from opentab.replica.follower import Follower
follower = Follower(config.load(Path(sys.argv[1])))
print("up", flush=True)
while True:
    follower.step()
"""


def test_killed_for_real_at_seeded_moments(home: Home) -> None:
    dice = random.Random(20170613)
    for number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, str(home.path)], stdout=subprocess.PIPE, env={**os.environ}
        )
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(3):
            bill(home, event("ann", f"{number}.25", f"2026-02-{5 + number:02d}T00:00:00Z"))
        try:
            process.wait(dice.uniform(0.05, 0.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
    assert is_whole(home.replica_path)
    follower = Follower(home)
    catch_up(follower)
    assert held(follower) == wanted(home)
    follower.close()


def test_memory_follows_the_rows_and_not_what_might_occur(tmp_path: Path) -> None:
    """Events in a thousand months: months × days × types are five million cells, and a thousand of them are used."""
    home = new_home(tmp_path / "home", SETTINGS)
    months = [divmod(12 * 1930 + number, 12) for number in range(1_000)]
    types = ("CALL", "DATA", "PACK")
    bill(home, *(
        event(f"c{number % 7}", "1.00", f"{year}-{month + 1:02d}-05T00:00:00Z", types[number % 3])
        for number, (year, month) in enumerate(months)
    ), close=False)  # fmt: skip
    follower = Follower(home)
    assert follower.step() is not None  # with nothing in it
    tracemalloc.start()
    catch_up(follower)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 30_000_000
    assert held(follower) == wanted(home)
    follower.close()


READ = """
import sys
from pathlib import Path
from opentab.replica.store import Store
with Store(Path(sys.argv[1]), writable=False).read():
    print("reading", flush=True)
    sys.stdin.read()
"""


def reading(home: Home) -> subprocess.Popen[bytes]:
    """A process that holds a view of a replica until it is killed."""
    command = [sys.executable, "-c", READ, str(home.replica_path)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"reading\n"
    return reader


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_running_follower_frees_the_slots_of_dead_readers(home: Home) -> None:
    Follower(home).close()
    follow = [sys.executable, "-m", "opentab.replica.follow", str(home.path), str(os.getpid())]
    follower = subprocess.Popen(follow, stdout=subprocess.PIPE)
    wait_for(lambda: present(home.ledger, now_us=time.time_ns() // 1000), "the follower began")
    reader = reading(home)
    with lmdb.open(str(home.replica_path), readonly=True) as environment:
        assert f"{reader.pid} " in environment.readers()
        kill(reader)
        wait_for(lambda: f"{reader.pid} " not in environment.readers(), "the slot was freed")
    kill(follower)


def test_readers_that_died_in_a_view_are_cleared(home: Home) -> None:
    follower = Follower(home)
    catch_up(follower)
    readers = [reading(home) for _ in range(3)]
    kill(readers[0])
    assert follower.store.clear_dead_readers() == 1
    assert follower.store.clear_dead_readers() == 0
    kill(readers[1])
    follower.close()
    follower = Follower(home)  # and at its start; one still reads, so LMDB does not begin a new list
    assert follower.store.clear_dead_readers() == 0
    kill(readers[2])
    follower.close()


@pytest.mark.parametrize("harm", ["cut short", "noise", "empty", "noise in the middle"])
def test_a_torn_copy_is_made_anew(home: Home, harm: str) -> None:
    for day in range(5, 9):
        customers = [event(f"c{day}-{n}", "1.00", f"2026-02-{day:02d}T00:00:00Z") for n in range(1_000)]
        bill(home, *customers, close=False)
    follower = Follower(home)
    catch_up(follower)
    follower.close()
    data = home.replica_path / "data.mdb"
    size = data.stat().st_size
    noise = random.Random(7)
    if harm == "cut short":
        os.truncate(data, size // 2)
    elif harm == "empty":
        os.truncate(data, 0)
    elif harm == "noise":
        data.write_bytes(noise.randbytes(size))
    else:
        with data.open("r+b") as file:
            for page in range(2, size // 4096, 3):
                file.seek(page * 4096)
                file.write(noise.randbytes(4096))
    follower = Follower(home)
    catch_up(follower)
    assert held(follower) == wanted(home)
    follower.close()


def probed_by(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(follower_module, "PROBE", [sys.executable, "-S", "-c", program])
    monkeypatch.setattr(follower_module, "SILENCE_SECONDS_MAX", 2.0)


def test_a_probe_takes_as_long_as_it_needs_if_it_gets_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    Follower(home).close()
    probed_by(monkeypatch, "import time\nfor _ in range(13): print('.', flush=True), time.sleep(0.2)")
    assert is_whole(home.replica_path)


def test_a_probe_that_hangs_is_noticed_and_the_copy_is_made_anew(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(home)
    catch_up(follower)
    follower.close()
    probed_by(monkeypatch, "import time\nprint('.', flush=True)\ntime.sleep(600)")
    assert not is_whole(home.replica_path)
    follower = Follower(home)
    assert position(follower) == (0, 0)
    catch_up(follower)
    assert held(follower) == wanted(home)
    follower.close()


def test_every_value_that_is_probed_is_progress(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    follower = Follower(home)
    catch_up(follower)
    values = len(dump(follower))
    follower.close()
    examine(home.replica_path, Dots(seconds=0))
    assert len(capsys.readouterr().out) >= values


def test_a_copy_of_another_home_or_history_is_made_anew(home: Home, tmp_path: Path) -> None:
    other = new_home(tmp_path / "other", SETTINGS)
    for day in range(1, 8):
        bill(other, event("zoe", "9.00", f"2026-03-{day:02d}T00:00:00Z"))
    follower = Follower(other)
    catch_up(follower)
    follower.close()
    other.replica_path.rename(home.replica_path)
    follower = Follower(home)
    catch_up(follower)
    assert held(follower) == wanted(home)
    assert position(follower)[0] == 2
    follower.close()


def test_a_copy_of_an_earlier_format_is_made_anew(home: Home) -> None:
    follower = Follower(home)
    catch_up(follower)
    before = held(follower)
    with follower.store.read() as snapshot:
        meta = snapshot.meta()
    assert meta is not None
    with follower.store.write() as change:
        change.set_meta(msgspec.structs.replace(meta, format=FORMAT - 1))
    assert not is_whole(home.replica_path)
    follower.close()
    follower = Follower(home)
    assert position(follower) == (0, 0)
    catch_up(follower)
    assert held(follower) == before
    follower.close()


def test_a_batch_that_does_not_add_up_stops_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(home)
    catch_up(follower)
    before = held(follower)
    record = bill(home, event("ann", "1.00", "2026-02-05T00:00:00Z"))
    true_batches = Journal.batches

    def changed(self: Journal, after: int = 0, upto: int | None = None) -> list[object]:
        return [
            msgspec.structs.replace(r, sum_micros="999") if r.batch == record.batch else r
            for r in true_batches(self, after, upto)
        ]

    monkeypatch.setattr(Journal, "batches", changed)
    with pytest.raises(FileDamaged, match=f"entries of batch {record.batch} come to"):
        catch_up(follower)
    assert held(follower) == before, "it keeps the last state that was right"
    follower.close()


def test_an_empty_home_has_nothing_to_fold(tmp_path: Path) -> None:
    follower = Follower(new_home(tmp_path / "home", SETTINGS))
    assert follower.step() is None
    assert position(follower) == (0, 0)
    follower.close()
    assert Invoices.open(follower.home.ledger) is None


def numbers(uses: list[tuple[int, ...]], part: int) -> np.ndarray:
    return np.array([use[part] for use in uses], np.int64)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), int64s, st.integers(-9, 9), int64s), max_size=30))
def test_sums_over_all_customers_do_not_wrap(count: int, uses: list[tuple[int, int, int, int]]) -> None:
    at = numbers(uses, 0) % count
    found = cells_at(at, count, *(numbers(uses, part) for part in (1, 2, 3)))
    for place, cell in enumerate(found):
        own = [use for use in uses if use[0] % count == place]
        last_us = max((use[3] for use in own), default=NEVER_US)
        assert cell == (sum(use[1] for use in own), sum(use[2] for use in own), last_us)
        assert read_cell(cell.packed()) == cell
    assert exact_sum(numbers(uses, 1)) == sum(use[1] for use in uses)


@given(st.lists(st.tuples(int64s, int64s), min_size=1, max_size=20))
def test_a_sum_that_leaves_64_bits_is_refused_and_never_wraps(pairs: list[tuple[int, int]]) -> None:
    wanted = [one + other for one, other in pairs]
    try:
        assert row_module.plus(numbers(pairs, 0), numbers(pairs, 1)).tolist() == wanted
    except OverflowError:
        assert any(not -(2**63) <= total < 2**63 for total in wanted)


@given(st.lists(int64s, min_size=1, max_size=6))
def test_a_customers_amounts_are_summed_exactly_or_refused(amounts: list[int]) -> None:
    count = len(amounts)
    columns = (np.zeros(count, np.int64), np.array(amounts, np.int64), np.ones(count, np.int64), np.arange(count))
    try:
        rows = summed(1, np.zeros(1, np.int64), *columns)
    except OverflowError:
        assert not -(2**63) <= sum(amounts) < 2**63
    else:
        assert rows.totals().tolist() == [sum(amounts)]
        assert rows.events().tolist() == [[count]]


def test_a_month_beyond_64_bits_stops_the_replica_at_the_last_state_that_was_right(home: Home) -> None:
    follower = Follower(home)
    catch_up(follower)
    before = held(follower)
    large = [event("bob", "999999999.000000", "2026-02-05T00:00:00Z") for n in range(9_300)]
    bill(home, *large, close=False)
    with pytest.raises(TotalTooLarge, match="a customer's total of 2026-02 is beyond"):
        catch_up(follower)
    assert held(follower) == before
    balances.write_snapshot(journal_of(home), home.calendar)
    follower.begin_anew()
    with pytest.raises(TotalTooLarge, match="opentab totals --period 2026-02 shows whose"):
        follower.step()
    follower.close()


def test_sums_over_all_customers_may_leave_64_bits(home: Home) -> None:
    large = [event(f"c{n % 4}", "999999999.000000", "2026-02-05T00:00:00Z") for n in range(12_000)]
    bill(home, *large, close=False)
    follower = Follower(home)
    catch_up(follower)
    sums = held(follower)
    assert sums == wanted(home)
    assert sum(sums.values()) > 2**63
    follower.close()
    assert is_whole(home.replica_path)


# Names that begin alike, are long, or are a beginning of each other.
names = st.one_of(
    st.text("abé", min_size=1, max_size=30),
    st.builds(lambda start, end: start + end, st.sampled_from(["customer", "customer-0123456", "c"]), st.text("ab", max_size=12)),
).filter(bool)  # fmt: skip


@examples(300)
@given(st.lists(names, min_size=1, max_size=40), st.text("pq", max_size=10))
def test_rows_come_in_the_order_of_their_customers(customers: list[str], prefix: str) -> None:
    customers = [prefix + customer for customer in customers]
    found = in_order(pa.array(customers))
    assert found.names.to_pylist() == sorted({customer.encode() for customer in customers})
    assert sorted(found.rows.tolist()) == list(range(len(customers)))
    at = zip(found.rows.tolist(), found.name_at.tolist(), strict=True)
    assert [found.names[place].as_py() for _, place in at] == [customers[row].encode() for row in found.rows.tolist()]
    assert found.name_at.tolist() == sorted(found.name_at.tolist())


@examples(200)
@given(
    st.integers(1, 20).flatmap(lambda size: st.lists(st.text("abc", min_size=size, max_size=size), min_size=1)),
    st.text("pq", max_size=10),
    st.data(),
)
def test_names_of_one_size_come_in_order_and_some_of_their_rows_as_well(
    ends: list[str], prefix: str, data: st.DataObject
) -> None:
    customers = [prefix + end for end in ends]
    # Out of the middle of an array, as pieces of a file come.
    found = in_order(pa.array(["before", *customers, "behind"])[1:-1])
    assert found.names.to_pylist() == sorted({customer.encode() for customer in customers})
    group = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(ends), max_size=len(ends))), np.int64)
    for number, some in enumerate(found.split(group, 3)):
        assert some.rows.tolist() == found.rows[group[found.rows] == number].tolist()
        at = zip(some.rows.tolist(), some.name_at.tolist(), strict=True)
        assert [some.names[place].as_py().decode() for _, place in at] == [customers[row] for row in some.rows.tolist()]
        assert some.names.to_pylist() == sorted(set(some.names.to_pylist()))


@examples(300)
@given(st.sets(names, max_size=30), st.sets(names, max_size=30), st.text("pq", max_size=10))
def test_new_names_are_put_between_those_that_are_known(known: set[str], new: set[str], prefix: str) -> None:
    """Also where all of them are new, none is, or there are none."""
    one, other = (sorted(f"{prefix}{name}\0".encode() for name in some) for some in (known, new))
    found = merge(pa.array(one, pa.binary()), pa.array(other, pa.binary()))
    together = found.names.to_pylist()
    assert together == sorted({*one, *other})
    assert [together[at] for at in found.known_at.tolist()] == one
    assert [together[at] for at in found.new_at.tolist()] == other


def test_names_are_listed_out_of_the_middle_of_an_array() -> None:
    listed = Listed(pa.array([b"before", b"ann", b"", b"bob", b"behind"])[1:-1])
    assert [listed[at] for at in range(len(listed))] == [b"ann", b"", b"bob"]
    assert len(Listed(pa.array([], pa.binary()))) == 0


def rows_of(uses: list[tuple[int, int, int]], columns: int) -> CustomerRows:
    """A row for each customer: one entry in one column."""
    columns_at, places = numbers(uses, 0) % columns, np.arange(len(uses))
    return summed(columns, places, columns_at, numbers(uses, 1), numbers(uses, 2), places)


sizes = st.one_of(st.integers(-9, 9), st.integers(-(2**58), 2**58))
counts = st.sampled_from([1, 1, 1, 2, -1, 2**30 - 1])  # below 0 where repeats are taken back
steps = st.lists(
    st.tuples(st.integers(3, 5), st.dictionaries(names, st.tuples(st.integers(0, 4), sizes, counts), min_size=1)),
    max_size=8,
)


@examples(200)
@given(steps)
def test_blocks_are_cut_and_grow_and_hold_every_customer(
    steps: list[tuple[int, dict[str, tuple[int, int, int]]]],
) -> None:
    """Whatever is added in whatever order, also new types: each customer's row is the sum of its own."""
    wanted: dict[bytes, list[list[int]]] = {}
    columns = 0
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 2)
        patch.setattr(blocks, "BLOCK_MAX", 4)
        store = Store(Path(name), writable=True)
        with store.write() as change:
            for at_least, customers in steps:
                columns = max(columns, at_least)
                uses = {customer.encode(): use for customer, use in customers.items()}
                known = len(wanted)
                for customer, (place, micros, events) in uses.items():
                    row = wanted.setdefault(customer, [])
                    row += [[0, 0] for _ in range(columns - len(row))]
                    row[place % columns][0] += micros
                    row[place % columns][1] += events
                ordered = sorted(uses)
                now, new = blocks.add(
                    change, b"2026-01", pa.array(ordered), rows_of([uses[c] for c in ordered], columns)
                )
                assert new == len(wanted) - known
                totals = [sum(micros for micros, _ in wanted[customer]) for customer in ordered]
                assert now.totals().tolist() == totals
        with store.read() as snapshot:
            found = {customer: row for customer, (row, _) in blocks.scan(snapshot, b"2026-01")}
            assert list(found) == sorted(wanted)
            for customer, row in wanted.items():
                assert [tuple(cell) for cell in row] == found[customer][: len(row)]
                assert not any(events for _, events in found[customer][len(row) :])
                assert blocks.find(snapshot, b"2026-01", customer)[0] == found[customer]
                assert blocks.find(snapshot, b"2026-01", customer + b"!") is None
            assert list(snapshot.scan_blocks(b"2026-02")) == []
            micros = sum(blocks.sum_of(*block)[0] for block in snapshot.scan_blocks(b"2026-01"))
            assert micros == sum(micros for row in wanted.values() for micros, _ in row)
            for after in [*sorted(wanted)[:3], b"c", b"zz"]:
                behind = [customer for customer, _ in blocks.scan(snapshot, b"2026-01", b"c", after=after)]
                assert behind == sorted(c for c in wanted if c.startswith(b"c") and c > after)
        store.close()


def test_a_block_that_lost_names_or_rows_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path, writable=True)
    with store.write() as change:
        blocks.add(change, b"2026-01", pa.array([b"ann", b"bob"]), rows_of([(0, 5, 1), (1, 7, 1)], 3))
    with store.read() as snapshot:
        ((key, value),) = snapshot.scan_blocks(b"")
    store.close()
    assert blocks.sum_of(key, value) == (12, 2)
    for harmed in (value[:-4], value[:40], value[:3], b""):
        with pytest.raises(ReplicaDamaged):
            blocks.sum_of(key, harmed)
