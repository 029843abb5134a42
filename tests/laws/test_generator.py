"""The simulated telecom keeps its word: bills to the micro, disorder within the bound, every option."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from law_examples import examples
from opentab.core.errors import InputError
from opentab.core.events import REASONS_BY_OTHERS, Reason
from opentab.core.money import format_micros
from opentab.core.periods import next_period
from opentab.ledger.totals import Adjustment, Total
from opentab.log import DirectoryLog, read_segment
from opentab.log.directory import SEGMENT_BYTES_MAX, SEGMENT_LINES_MAX, Clock
from opentab.runtime.config import Home, parse
from opentab.simulator import telecom
from opentab.simulator.bills import bills_by_own_month
from opentab.simulator.generator import Outcome, Plan, generate, read_bills, read_rejections, write_lines
from opentab.wire.reference import Event, Refusal, judge

NOW = datetime(2026, 7, 15, 12, tzinfo=UTC)
HOUR_MS = 3_600_000
BOUND_MS = 12 * HOUR_MS
LATENESS_MS = 72 * HOUR_MS


def home_at(path: Path, **billing: Any) -> Home:
    return parse(path, {"billing": billing})


def at_now() -> datetime:
    return NOW


def segments(home: Home) -> dict[str, list[bytes]]:
    """The bodies in the log, by partition, in order."""
    log = DirectoryLog(home.log_path)
    return {
        partition: [bytes(read_segment(log.incoming_path(partition, number)).body) for number in numbers]
        for partition, numbers in log.pending().items()
    }


def lines(home: Home) -> dict[str, list[bytes]]:
    return {name: b"".join(bodies).splitlines() for name, bodies in segments(home).items()}


@dataclass(frozen=True)
class Read:
    """An event as this test reads it: json and Decimal, none of our own code."""

    time_ms: int
    customer: str
    type: str
    amount: Decimal
    id: str | None

    @property
    def period(self) -> str:
        return datetime.fromtimestamp(self.time_ms / 1000, UTC).strftime("%Y-%m")


def read(line: bytes) -> Read:
    event = json.loads(line, parse_float=Decimal)
    data, customer = event, event.get("customer")
    if "specversion" in event:
        data, customer = event["data"], event["subject"]
        assert event["specversion"] == "1.0"
        assert event["source"] and event["type"] and event["id"]
    time = event["time"]
    if isinstance(time, str):
        time = round(datetime.fromisoformat(time).timestamp() * 1000)
    return Read(time, customer, data["type"], Decimal(data["amount"]), event.get("id"))


def good(home: Home, raw: list[bytes]) -> list[bytes]:
    """The lines that can be billed, duplicates once."""
    seen: set[str] = set()
    kept = []
    for line in raw:
        verdict = judge(line, arrived_us=lab_us(NOW), rules=home.rules, calendar=home.calendar)
        if isinstance(verdict, Event) and (verdict.id is None or verdict.id not in seen):
            kept.append(line)
            seen.add(verdict.id or "")
    return kept


def lab_us(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


def added_up(events: list[Read]) -> dict[tuple[str, str], Decimal]:
    bills: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for event in events:
        bills[event.period, event.customer] += event.amount
    return dict(bills)


def expected(home: Home) -> dict[tuple[str, str], Decimal]:
    return {key: Decimal(micros).scaleb(-6) for key, micros in read_bills(home.expected_path).items()}


def settled(plan: Plan, home: Home) -> telecom.Telecom:
    return telecom.settle(plan, rules=home.rules, calendar=home.calendar, now_us=lab_us(NOW))


@given(
    parts=st.lists(st.tuples(st.integers(0, 250_000_000), st.integers(1, 300)), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
)
@examples(60)
def test_any_total_is_the_sum_of_its_parts(parts: list[tuple[int, int]], seed: int) -> None:
    totals, counts = (np.array(column, dtype=np.int64) for column in zip(*parts, strict=True))
    cut = telecom.split(totals, counts, np.random.default_rng(seed))
    assert len(cut) == counts.sum()
    assert np.add.reduceat(cut, np.cumsum(counts) - counts).tolist() == totals.tolist()
    least = np.repeat(totals >= counts, counts)
    assert (cut >= least).all()


@given(st.lists(st.integers(0, 2**60), max_size=50), st.booleans())
def test_order_of_arrival_is_a_stable_sort(arrivals: list[int], narrow: bool) -> None:
    arrival_ms = np.array([a % 7 if narrow else a for a in arrivals], dtype=np.int64)
    wanted = sorted(range(len(arrivals)), key=lambda i: (arrival_ms[i], i))
    assert telecom.arrival_order(arrival_ms).tolist() == wanted


@pytest.mark.slow
def test_the_nine_pay_what_they_always_pay(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    generate(Plan(seed=5, months=2), home, clock=at_now)
    events = [read(line) for line in lines(home)["default"]]
    bills = added_up(events)
    assert bills == expected(home)
    assert {customer: bills["2026-06", customer] for _, customer in bills} == {
        "emma": 100, "olivia": 80, "sophia": 120, "ava": 60, "isa": 20,
        "noah": 200, "william": 250, "liam": 30, "jacob": 40,
    }  # fmt: skip
    assert {period for period, _ in bills} == {"2026-05", "2026-06"}
    by_customer = Counter((event.period, event.customer) for event in events)
    assert all(9_500 <= count <= 10_500 for count in by_customer.values())
    assert len({(event.customer, event.type) for event in events}) == 9 * 5
    assert 0.75 < sum(event.id is not None for event in events) / len(events) < 0.85
    assert any(event.amount % Decimal("0.01") for event in events)
    ids = [event.id for event in events if event.id]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_a_thousand_customers_with_everything_at_once(tmp_path: Path) -> None:
    """Bad rows and duplicates left out, what is in the log is what bills.csv says."""
    home = home_at(tmp_path)
    plan = Plan(
        seed=7, customers=1000, events_per_customer=8, months=3, sources=3,
        late_share=0.05, beyond_share=0.05, duplicate_share=0.05, bad_share=0.05,
        cloudevents_share=0.2, variety_share=0.3,
        lag=timedelta(minutes=30), silence=timedelta(days=1),
    )  # fmt: skip
    outcome = generate(plan, home, clock=at_now)
    raw = [line for partition in lines(home).values() for line in partition]
    assert outcome == Outcome(("2026-04", "2026-05", "2026-06"), len(raw), len(raw), 24_000, finished=True)
    assert len(raw) == 24_000 + 3 * 400 + 3 * 400
    kept = good(home, raw)
    events = [read(line) for line in kept]
    assert added_up(events) == expected(home)
    assert min(expected(home).values()) >= 1 and max(expected(home).values()) <= 250

    # Our own reading of each line is the same, whatever its spelling.
    for line, event in zip(kept, events, strict=True):
        verdict = judge(line, arrived_us=lab_us(NOW), rules=home.rules, calendar=home.calendar)
        assert isinstance(verdict, Event)
        assert (verdict.at_us, verdict.customer, verdict.type, verdict.id) == (
            event.time_ms * 1000, event.customer, event.type, event.id,
        )  # fmt: skip
        assert format_micros(verdict.amount_micros) == f"{event.amount:.6f}"

    types: dict[tuple[str, str], tuple[Decimal, int]] = defaultdict(lambda: (Decimal(), 0))
    for event in events:
        total, count = types[event.period, event.type]
        types[event.period, event.type] = (total + event.amount, count + 1)
    rows = (home.expected_path / "types.csv").read_text().splitlines()
    assert rows[0] == "period,type,total,events"
    assert sorted(rows[1:]) == sorted(f"{p},{t},{total:.6f},{n}" for (p, t), (total, n) in types.items())
    assert (
        (home.expected_path / "bills.csv").read_text().startswith("period,customer,total\n2026-04,c0000000,1.000000\n")
    )


def test_spellings_and_envelopes_are_all_there(tmp_path: Path) -> None:
    file = io.BytesIO()
    plan = Plan(events_per_customer=300, variety_share=0.5, cloudevents_share=0.3)
    write_lines(plan, home_at(tmp_path), file, clock=at_now)
    raw = file.getvalue().splitlines()
    kinds = Counter(
        (type(event["time"]), "specversion" in event, type(event.get("data", event)["amount"]))
        for event in map(json.loads, raw)
    )
    assert set(kinds) == {
        (time, enveloped, amount)
        for time, amount in ((str, str), (int, str), (str, float))
        for enveloped in (False, True)
    }
    assert any(b'+05:30"' in line for line in raw) and any(b'-03:00"' in line for line in raw)


def test_bad_rows_have_each_reason_and_no_other(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = Plan(events_per_customer=400, months=2, bad_share=0.04)
    generate(plan, home, clock=at_now)
    found: Counter[Reason] = Counter()
    places = []
    raw = lines(home)["default"]
    for place, line in enumerate(raw):
        verdict = judge(line, arrived_us=lab_us(NOW), rules=home.rules, calendar=home.calendar)
        if isinstance(verdict, Refusal):
            found[verdict.reason] += 1
            places.append(place)
    assert found == read_rejections(home.expected_path)
    assert set(found) == set(Reason) - {Reason.TOO_LARGE, *REASONS_BY_OTHERS}
    assert min(places) < len(raw) / 10 and max(places) > len(raw) * 0.9
    assert (home.expected_path / "rejections.csv").read_text().startswith("reason,count\nnot_json,")


def test_bad_rows_are_bad_in_every_home(tmp_path: Path) -> None:
    home = home_at(tmp_path, currency="USD", types=["FAX", "A" * 64], zone="Asia/Kolkata")
    generate(Plan(events_per_customer=50, bad_share=0.5), home, clock=at_now)
    verdicts = Counter(
        verdict.reason if isinstance(verdict, Refusal) else "event"
        for verdict in (
            judge(line, arrived_us=lab_us(NOW), rules=home.rules, calendar=home.calendar)
            for line in lines(home)["default"]
        )
    )
    bad_count = sum(verdicts.values()) - verdicts["event"]
    assert bad_count == round(verdicts.pop("event") / 2)
    assert verdicts == read_rejections(home.expected_path)


def test_duplicates_are_the_same_bytes_a_little_later(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    generate(Plan(events_per_customer=500, duplicate_share=0.1), home, clock=at_now)
    raw = lines(home)["default"]
    first: dict[str, bytes] = {}
    repeats = 0
    for line in raw:
        event_id = read(line).id
        if event_id is not None and first.setdefault(event_id, line) is not line:
            assert first[event_id] == line
            repeats += 1
    events = len(raw) - repeats
    assert repeats == round(events * 0.1)
    assert added_up([read(line) for line in good(home, raw)]) == expected(home)


def test_conflicts_are_the_same_id_with_another_amount_behind_the_first(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = Plan(
        events_per_customer=500, months=2, sources=2, duplicate_share=0.1, conflict_share=0.1, bad_share=0.01,
        silence=timedelta(days=3),
    )  # fmt: skip
    outcome = generate(plan, home, clock=at_now)
    by_partition = lines(home)
    assert outcome.line_count == sum(map(len, by_partition.values())) == outcome.line_count_planned
    conflicts = 0
    for raw in by_partition.values():
        first: dict[str, Read] = {}
        for line in raw:
            verdict = judge(line, arrived_us=lab_us(NOW), rules=home.rules, calendar=home.calendar)
            if isinstance(verdict, Event) and verdict.id is not None:
                event = read(line)
                original = first.setdefault(verdict.id, event)
                assert event == replace(original, amount=event.amount)
                assert abs(event.amount - original.amount) in (0, Decimal("0.000001"))
                conflicts += event.amount != original.amount
        assert added_up([read(line) for line in good(home, raw)]).items() <= expected(home).items()
    assert conflicts == read_rejections(home.expected_path)[Reason.CONFLICTING_DUPLICATE]
    assert abs(conflicts - outcome.event_count_planned * 0.1) <= 1
    # The events themselves are those of a plan without.
    alone = home_at(tmp_path / "alone")
    generate(replace(plan, conflict_share=0.0), alone, clock=at_now)
    assert expected(alone) == expected(home)
    assert Reason.CONFLICTING_DUPLICATE not in read_rejections(alone.expected_path)
    for name, raw in lines(alone).items():
        assert set(raw) <= set(by_partition[name])


def test_conflicts_need_dedupe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without dedupe no two events conflict"):
        generate(Plan(conflict_share=0.1), home_at(tmp_path, dedupe_window="off"), clock=at_now)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan(
        events_per_customer=200,
        months=2,
        sources=2,
        bad_share=0.05,
        duplicate_share=0.05,
        cloudevents_share=0.1,
    )
    homes = [home_at(tmp_path / name) for name in "abc"]
    for home, seed in zip(homes, (3, 3, 4), strict=True):
        generate(replace(plan, seed=seed), home, clock=at_now)
    assert segments(homes[0]) == segments(homes[1])
    assert segments(homes[0]) != segments(homes[2])
    # A month is the same whatever months go before it.
    alone, both = io.BytesIO(), io.BytesIO()
    quiet = replace(plan, bad_share=0.0, late_share=0.0)
    write_lines(replace(quiet, months=1), homes[0], alone, clock=at_now)
    write_lines(quiet, homes[0], both, clock=at_now)
    assert set(alone.getvalue().splitlines()) <= set(both.getvalue().splitlines())


@given(seed=st.integers(0, 2**40), hours=st.sampled_from([0, 1, 12, 100]), sources=st.integers(1, 4))
@examples(15)
def test_disorder_stays_within_the_bound(seed: int, hours: int, sources: int) -> None:
    """In each partition no on-time event is behind the latest by more than the out-of-orderness."""
    home = home_at(Path("unused"), out_of_orderness=f"{hours}h")
    plan = Plan(
        seed=seed, events_per_customer=200, months=2, sources=sources, late_share=0.0,
        lag=timedelta(minutes=30), silence=timedelta(days=2),
    )  # fmt: skip
    rows = telecom.Rows.concat(list(settled(plan, home).stream()))
    for source in range(sources):
        time_ms = rows.time_ms[rows.customer % sources == source]
        assert (np.maximum.accumulate(time_ms) - time_ms).max() <= hours * HOUR_MS
    if hours:
        assert (np.diff(rows.time_ms) < 0).any()


@given(seed=st.integers(0, 2**40), zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]))
@examples(10)
def test_late_events_are_late_and_beyond_ones_beyond(seed: int, zone: str) -> None:
    """By the watermark that the stream itself makes: latest event time less the out-of-orderness."""
    home = home_at(Path("unused"), zone=zone)
    plan = Plan(seed=seed, events_per_customer=1000, months=3, late_share=0.03, beyond_share=0.02)
    simulated = settled(plan, home)
    months = list(simulated.stream())
    rows = telecom.Rows.concat(months)
    assert (np.diff(rows.arrival_ms) >= 0).all()
    latest = np.maximum.accumulate(rows.time_ms)
    watermark = np.concatenate([[0], latest[:-1]]) - BOUND_MS
    ends = np.array([home.calendar.end_us(period) // 1000 for period in simulated.periods])
    starts = np.array([home.calendar.start_us(period) // 1000 for period in simulated.periods])
    assert ((rows.time_ms >= starts[rows.month]) & (rows.time_ms < ends[rows.month])).all()
    end = ends[rows.month]
    for month in (0, 1):
        mine = rows.month == month
        beyond = mine & (watermark >= end + LATENESS_MS)
        late = mine & (watermark >= end) & ~beyond
        assert 0.02 < late.sum() / mine.sum() < 0.04
        assert 0.01 < beyond.sum() / mine.sum() < 0.03
        # The law holds the other way round, too: who was not made late is not.
        assert (rows.arrival_ms[mine & ~late & ~beyond] - rows.time_ms[mine & ~late & ~beyond] < BOUND_MS).all()
    assert max(len(part) for part in months) < len(rows)


def test_a_silent_source_is_silent_and_keeps_its_bills(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = Plan(
        events_per_customer=500, months=2, sources=3, silence=timedelta(days=3), late_share=0.05,
        bad_share=0.05, duplicate_share=0.05,
    )  # fmt: skip
    simulated = settled(plan, home)
    rows = telecom.Rows.concat(list(simulated.stream()))
    for first_ms, last_ms in simulated.silent_windows_ms():
        assert last_ms - first_ms == 3 * 24 * HOUR_MS
        arrives = (rows.arrival_ms >= first_ms) & (rows.arrival_ms < last_ms)
        happens = (rows.time_ms >= first_ms) & (rows.time_ms < last_ms) & (rows.bad == 0)
        assert set((rows.customer[arrives] % 3).tolist()) == {1, 2}
        assert set((rows.customer[happens] % 3).tolist()) == {1, 2}
    generate(plan, home, clock=at_now)
    kept = [read(line) for partition in lines(home).values() for line in good(home, partition)]
    assert added_up(kept) == expected(home)


def test_the_last_source_lags(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = Plan(events_per_customer=100, sources=2)
    (prompt,) = settled(plan, home).stream()
    (lagging,) = settled(replace(plan, lag=timedelta(minutes=30)), home).stream()
    by_serial = [rows.take(np.argsort(rows.serial)) for rows in (prompt, lagging)]
    delay_ms = by_serial[1].arrival_ms - by_serial[0].arrival_ms
    assert (delay_ms == np.where(by_serial[0].customer % 2 == 1, HOUR_MS // 2, 0)).all()


def test_a_customer_belongs_to_one_source(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    generate(Plan(events_per_customer=50, sources=4), home, clock=at_now)
    found = {name: {read(line).customer for line in raw} for name, raw in lines(home).items()}
    assert found == {
        "source1": {"emma", "isa", "jacob"},
        "source2": {"olivia", "noah"},
        "source3": {"sophia", "william"},
        "source4": {"ava", "liam"},
    }


def test_segments_are_no_larger_than_the_log_and_the_batch_allow(tmp_path: Path) -> None:
    large = home_at(tmp_path / "large")
    generate(Plan(events_per_customer=12_000), large, clock=at_now)
    small = parse(tmp_path / "small", {"pipeline": {"batch_events_max": 70}})
    generate(Plan(events_per_customer=100, sources=2), small, clock=at_now)
    for home, lines_max in ((large, SEGMENT_LINES_MAX), (small, 70)):
        bodies = [body for partition in segments(home).values() for body in partition]
        assert len(bodies) > 1
        assert all(body.count(b"\n") <= lines_max and len(body) <= SEGMENT_BYTES_MAX for body in bodies)


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = NOW
        self.sleeps = 0

    def clock(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.at += timedelta(seconds=seconds)


def test_live_writes_everything_in_its_time(tmp_path: Path) -> None:
    plan = Plan(events_per_customer=100, months=2, sources=2, month_seconds=3.0, late_share=0.05)
    home, time = home_at(tmp_path / "live"), FakeTime()
    seen: list[tuple[int, int, datetime]] = []
    outcome = generate(plan, home, clock=time.clock, sleep=time.sleep, progress=lambda *args: seen.append(args))
    count = outcome.line_count
    assert outcome.finished and 1_710 <= count == outcome.line_count_planned <= 1_890
    # Two months of three seconds, and the late ones of the last.
    assert timedelta(seconds=6) <= time.at - NOW < timedelta(seconds=7)
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][:2] == (count, count)
    assert seen[0][2] == datetime(2026, 5, 1, tzinfo=UTC)
    assert len(segments(home)["source1"]) > 40
    fast = home_at(tmp_path / "fast")
    generate(replace(plan, month_seconds=None), fast, clock=at_now)
    assert lines(home) == lines(fast)


def test_live_stops_when_asked(tmp_path: Path) -> None:
    home, time = home_at(tmp_path), FakeTime()
    outcome = generate(
        Plan(events_per_customer=100, month_seconds=3.0),
        home,
        clock=time.clock,
        sleep=time.sleep,
        stop=lambda: time.sleeps >= 10,
    )
    assert time.sleeps == 10
    assert not outcome.finished
    assert 0.2 < outcome.line_count / outcome.line_count_planned < 0.4
    assert len(lines(home)["default"]) == outcome.line_count


def test_fast_stops_when_asked(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    outcome = generate(Plan(events_per_customer=100), home, clock=at_now, stop=lambda: True)
    assert (outcome.line_count, outcome.finished) == (0, False)
    assert segments(home) == {}


def test_more_months_are_added_to_what_is_expected(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    for first, seed in (("2026-01", 1), ("2026-03", 1), ("2026-01", 1)):
        plan = Plan(seed=seed, events_per_customer=40, first_period=first, bad_share=0.05)
        generate(plan, home, clock=at_now)
    bills = read_bills(home.expected_path)
    assert bills["2026-01", "emma"] == 200_000_000
    assert bills["2026-03", "emma"] == 100_000_000
    assert len(bills) == 18
    # The run repeated has ids of its own, so no event of it passes for a duplicate.
    raw = lines(home)["default"]
    assert added_up([read(line) for line in good(home, raw)]) == expected(home)
    assert sum(read_rejections(home.expected_path).values()) == 3 * 18
    runs = json.loads((home.expected_path / "plan.json").read_text())["runs"]
    assert [(run["run"], run["seed"], run["periods"]) for run in runs] == [
        (0, 1, ["2026-01"]), (1, 1, ["2026-03"]), (2, 1, ["2026-01"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("period,customer\n", "its columns are not period, customer, total"),
        ("", "its columns are not period, customer, total"),
        ("period,customer,total\n2026-01,emma,1.5\n", "'1.5' is not a total with six decimals"),
        ("period,customer,total\n2026-01,emma\n", "shorter"),
        ('period,customer,total\n2026-01,"emma', "unexpected end of data"),
        ("period,customer,total\n2026-01,emma,1.000000,2\n", "longer"),
        ("period,customer,total\n2026-01,em\x00\xffma,1.000000\n", "utf-8"),
    ],
)
def test_expected_bills_that_the_simulator_did_not_write(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "bills.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=f"is not what the simulator wrote: .*{why}"):
        read_bills(file)


def test_what_is_expected_is_there_before_the_first_event(tmp_path: Path) -> None:
    home = home_at(tmp_path)

    def stop() -> bool:
        assert len(read_bills(home.expected_path)) == 9
        assert segments(home) == {}
        return True

    generate(Plan(events_per_customer=40), home, clock=at_now, stop=stop)


def test_months_begin_and_end_in_the_billing_zone(tmp_path: Path) -> None:
    home = home_at(tmp_path, zone="Pacific/Auckland")
    generate(Plan(events_per_customer=2000), home, clock=at_now)
    bills: Counter[tuple[str, str]] = Counter()
    for line in lines(home)["default"]:
        event = read(line)
        bills[home.calendar.period_of(event.time_ms * 1000), event.customer] += int(event.amount.scaleb(6))
    assert bills == read_bills(home.expected_path)


@dataclass(frozen=True)
class Heard:
    """A line as a reader hears it: what stands in it, and the watermark before it."""

    event: Read
    watermark_ms: int


def heard(plan: Plan, home: Home, *, clock: Clock = at_now) -> tuple[list[Heard], int]:
    """All lines in order of arrival, and the watermark behind the last of them."""
    file = io.BytesIO()
    outcome = write_lines(plan, home, file, expected_path=home.expected_path, clock=clock)
    sources = {name.decode(): i % plan.sources for i, name in enumerate(telecom.customer_names(plan.customers))}
    disorder_ms = home.rules.out_of_orderness_us // 1000
    latest: dict[int, int] = {}
    watermark_ms = -(2**62)
    found = []
    for line in file.getvalue().splitlines():
        if not isinstance(judge(line, arrived_us=lab_us(clock()), rules=home.rules, calendar=home.calendar), Event):
            continue
        event = read(line)
        found.append(Heard(event, watermark_ms))
        source = sources[event.customer]
        latest[source] = max(latest.get(source, event.time_ms), event.time_ms)
        watermark_ms = max(watermark_ms, min(latest.values()) - disorder_ms)
    assert outcome.finished
    assert outcome.line_count == outcome.line_count_planned == file.getvalue().count(b"\n")
    return found, watermark_ms


def made_late(plan: Plan, home: Home, *, clock: Clock = at_now) -> tuple[set[str], set[str]]:
    """The ids of the events that the plan makes late, and of those that it makes come beyond."""

    def arrivals(**shares: float) -> dict[tuple[int, int], int]:
        other = replace(plan, duplicate_share=0.0, bad_share=0.0, **shares)
        simulated = telecom.settle(other, rules=home.rules, calendar=home.calendar, now_us=lab_us(clock()))
        rows = telecom.Rows.concat(list(simulated.stream()))
        keys = zip(rows.month.tolist(), rows.serial.tolist(), strict=True)
        return dict(zip(keys, rows.arrival_ms.tolist(), strict=True))

    # Who is late is drawn apart from everything else: the same event is there without, but on time.
    prompt = arrivals(late_share=0.0, beyond_share=0.0)
    late = {key for key, at_ms in arrivals(beyond_share=0.0).items() if at_ms != prompt[key]}
    beyond = {key for key, at_ms in arrivals().items() if at_ms != prompt[key]} - late
    periods = telecom.settle(plan, rules=home.rules, calendar=home.calendar, now_us=lab_us(clock())).periods
    return (
        {f"{plan.seed:x}-0-{periods[month]}-{serial:09d}" for month, serial in late},
        {f"{plan.seed:x}-0-{periods[month]}-{serial:09d}" for month, serial in beyond},
    )


UNTIL_FINAL = Plan(
    events_per_customer=1000, months=2, id_share=1.0, late_share=0.03, beyond_share=0.03, until_final=True
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "billing"),
    [
        ({}, {}),
        ({"sources": 3}, {"zone": "Pacific/Auckland"}),
        ({"sources": 2, "lag": timedelta(hours=1)}, {"zone": "America/St_Johns"}),
        # Longer than a tenth of the lateness, and than the time from final to the first one beyond.
        ({"sources": 2, "lag": timedelta(days=2)}, {}),
        ({"sources": 3, "lag": timedelta(hours=1), "silence": timedelta(days=9)}, {}),
        ({"sources": 2, "duplicate_share": 0.1, "bad_share": 0.1}, {}),
        ({"cloudevents_share": 0.3, "variety_share": 0.3}, {"out_of_orderness": "0s"}),
        ({}, {"out_of_orderness": "3d", "allowed_lateness": "10d"}),
        ({"months": 3}, {"out_of_orderness": "20d", "allowed_lateness": "40d"}),
    ],
)
def test_until_final_all_months_close_are_revised_and_final(
    tmp_path: Path, options: dict[str, Any], billing: dict[str, Any]
) -> None:
    """By the watermark that the lines themselves make, in the order of their arrival."""
    home = home_at(tmp_path, **billing)
    plan = replace(UNTIL_FINAL, **options)
    lateness_ms = home.rules.allowed_lateness_us // 1000
    late, beyond = made_late(plan, home)
    told, watermark_ms = heard(plan, home)
    seen: set[str] = set()
    revised, adjusted = Counter[str](), Counter[str]()
    adjusted_in: set[str] = set()
    for each in told:
        assert each.event.id is not None
        if each.event.id in seen:
            continue
        seen.add(each.event.id)
        own = home.calendar.period_of(each.event.time_ms * 1000)
        since_ms = each.watermark_ms - home.calendar.end_us(own) // 1000
        if each.event.id in late:
            assert 0 <= since_ms < lateness_ms
            revised[own] += 1
        elif each.event.id in beyond:
            assert since_ms >= lateness_ms
            adjusted[own] += 1
            adjusted_in.add(home.calendar.period_of(each.watermark_ms * 1000))
        else:
            assert since_ms < 0
    simulated = settled(plan, home).periods
    assert set(revised) == set(adjusted) == set(simulated)
    for period in adjusted_in.union(simulated):
        assert watermark_ms >= home.calendar.end_us(period) // 1000 + lateness_ms


@pytest.mark.parametrize(("sources", "lag_hours"), [(1, 0), (1, 5), (2, 0), (2, 5), (2, 480)])
@pytest.mark.parametrize("disorder", ["0s", "12h", "400d"])
@pytest.mark.parametrize("lateness", ["0s", "5ms", "1h", "400d"])
def test_until_final_the_last_month_is_final_whatever_the_settings(
    tmp_path: Path, sources: int, lag_hours: int, disorder: str, lateness: str
) -> None:
    home = home_at(tmp_path, out_of_orderness=disorder, allowed_lateness=lateness, future_skew="0s")
    plan = Plan(
        events_per_customer=30, sources=sources, lag=timedelta(hours=lag_hours), id_share=1.0,
        late_share=0.2, beyond_share=0.2, duplicate_share=0.2, until_final=True,
    )  # fmt: skip
    late, beyond = made_late(plan, home)
    told, watermark_ms = heard(plan, home)
    lateness_ms = home.rules.allowed_lateness_us // 1000
    (period,) = settled(plan, home).periods
    end_ms = home.calendar.end_us(period) // 1000
    first = {each.event.id: each.watermark_ms - end_ms for each in reversed(told)}
    # Where no lateness is allowed, what comes after the closing is beyond.
    assert all(0 <= first[id_] < max(lateness_ms, 1) for id_ in late) and late
    assert all(first[id_] >= lateness_ms for id_ in beyond) and beyond
    billed_in = {home.calendar.period_of(each.watermark_ms * 1000) for each in told if each.event.id in beyond}
    assert watermark_ms >= max(map(home.calendar.end_us, billed_in)) // 1000 + lateness_ms
    ticks = Counter(each.event.customer for each in told if each.event.id and "-tick-" in each.event.id)
    assert len(ticks) == sources and max(ticks.values()) <= 210


def test_until_final_ticks_bill_nothing_and_are_expected(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = replace(UNTIL_FINAL, sources=3, duplicate_share=0.1, bad_share=0.1, cloudevents_share=0.2)
    outcome = generate(plan, home, clock=at_now)
    assert outcome.finished and outcome.periods == ("2026-04", "2026-05")
    by_partition = lines(home)
    raw = [line for partition in by_partition.values() for line in partition]
    assert outcome.line_count == outcome.line_count_planned == len(raw)
    kept = good(home, raw)
    assert outcome.event_count_planned == len(kept)
    events = [read(line) for line in kept]
    bills = added_up(events)
    assert bills == expected(home)
    assert {key: total for key, total in bills.items() if key[0] > "2026-05"} == {
        (period, customer): 0 for period in ("2026-06", "2026-07") for customer in ("emma", "olivia", "sophia")
    }
    ticks = [event for event in events if event.period > "2026-05"]
    assert {(event.amount, event.type, event.id is None) for event in ticks} == {(Decimal(0), "MESSAGE", False)}
    assert len({event.id for event in ticks}) == len(ticks) == 3 * 54
    times_ms = sorted({event.time_ms for event in ticks})
    assert times_ms[0] == home.calendar.end_us("2026-05") // 1000
    assert max(np.diff(times_ms[:-1])) == 3 * HOUR_MS
    types = (home.expected_path / "types.csv").read_text().splitlines()[-2:]
    assert types == ["2026-06,MESSAGE,0.000000,159", "2026-07,MESSAGE,0.000000,3"]
    # The last tick is the last line of its source, and not ahead of now.
    for partition in by_partition.values():
        assert read(partition[-1]).time_ms == times_ms[-1] <= lab_us(NOW) // 1000


def test_until_final_only_adds_ticks(tmp_path: Path) -> None:
    """Without it nothing changes, and with it the events are the same in the same order."""
    home = home_at(tmp_path)
    plan = replace(
        UNTIL_FINAL, first_period="2026-02", sources=2, id_share=0.5, bad_share=0.1, duplicate_share=0.1,
        silence=timedelta(days=5), until_final=False,
    )  # fmt: skip
    off, on = io.BytesIO(), io.BytesIO()
    write_lines(plan, home, off, expected_path=tmp_path / "off", clock=at_now)
    write_lines(replace(plan, until_final=True), home, on, expected_path=tmp_path / "on", clock=at_now)
    assert not Plan().until_final and b"-tick-" not in off.getvalue()
    assert [line for line in on.getvalue().splitlines() if b"-tick-" not in line] == off.getvalue().splitlines()
    without, along = ((tmp_path / name / "bills.csv").read_text() for name in ("off", "on"))
    assert along.startswith(without)
    assert all(row.endswith(",0.000000") for row in along.removeprefix(without).splitlines())


def test_until_final_a_source_without_customers_does_not_tick(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    plan = replace(UNTIL_FINAL, customers=2, sources=4, lag=timedelta(days=9))
    generate(plan, home, clock=at_now)
    assert set(lines(home)) == {"source1", "source2"}
    late, beyond = made_late(plan, home)
    told, _ = heard(plan, home_at(tmp_path / "lines"))
    for each in told:
        since_ms = each.watermark_ms - home.calendar.end_us(each.event.period) // 1000
        assert (since_ms >= 0) == (each.event.id in late | beyond)
        assert (since_ms >= LATENESS_MS) == (each.event.id in beyond)


def test_until_final_beside_months_that_were_there(tmp_path: Path) -> None:
    """A bill of nothing adds nothing to one that is there, before or after."""
    home = home_at(tmp_path)
    plan = Plan(events_per_customer=40, until_final=True)
    for first in ("2026-03", "2026-02", "2026-03"):
        generate(replace(plan, first_period=first), home, clock=at_now)
    events = [read(line) for line in lines(home)["default"]]
    assert added_up(events) == expected(home)
    assert len({event.id for event in events if event.id}) == sum(event.id is not None for event in events)


def test_until_final_live_passes_at_the_speed_of_the_months(tmp_path: Path) -> None:
    plan = Plan(events_per_customer=100, sources=2, month_seconds=31.0, first_period="2026-05", until_final=True)
    home, time = home_at(tmp_path / "live"), FakeTime()
    assert generate(plan, home, clock=time.clock, sleep=time.sleep).finished
    # A second a day: half a day of disorder, three of lateness, three for what comes beyond.
    assert timedelta(seconds=31 + 6.5) <= time.at - NOW < timedelta(seconds=31 + 7)
    fast = home_at(tmp_path / "fast")
    generate(replace(plan, month_seconds=None), fast, clock=at_now)
    assert lines(home) == lines(fast)


@given(
    now=st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)),
    zone=st.sampled_from(["UTC", "Pacific/Kiritimati", "America/St_Johns"]),
    disorder=st.integers(0, 100),
    lateness=st.integers(0, 100),
    months=st.integers(1, 14),
)
@examples(40)
def test_until_final_takes_the_latest_months_that_can_be_final_by_now(
    now: datetime, zone: str, disorder: int, lateness: int, months: int
) -> None:
    home = home_at(Path("unused"), zone=zone, out_of_orderness=f"{disorder}h", allowed_lateness=f"{lateness}d")
    now_us = lab_us(now.replace(tzinfo=UTC))
    plan = Plan(months=months, until_final=True)

    def settle(plan: Plan) -> telecom.Telecom:
        return telecom.settle(plan, rules=home.rules, calendar=home.calendar, now_us=now_us)

    chosen = settle(plan)
    assert len(chosen.periods) == months
    assert chosen.tick_times_ms().max() * 1000 <= now_us
    assert settle(replace(plan, first_period=chosen.periods[0])).periods == chosen.periods
    with pytest.raises(InputError, match="cannot be final by now") as refused:
        settle(replace(plan, first_period=next_period(chosen.periods[0])))
    assert refused.value.hint and chosen.periods[0] in refused.value.hint


def test_an_adjustment_counts_in_its_own_month() -> None:
    february = Total("2026-02", "emma", "open", types={"CALL": 5, "DATA": 7})
    february.adjustments = [Adjustment("2026-01", "CALL", 30, 1), Adjustment("2025-12", "CALL", 0, 2)]
    january = Total("2026-01", "emma", "final", types={"CALL": 100})
    ava = Total("2026-02", "ava", "open", adjustments=[Adjustment("2026-01", "CALL", -4, 1)])
    assert bills_by_own_month([january, ava, february]) == {
        ("2025-12", "emma"): 0, ("2026-01", "emma"): 130, ("2026-02", "emma"): 12, ("2026-01", "ava"): -4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"customers": 0}, "0 customers"),
        ({"late_share": 1.5}, "late_share 1.5"),
        ({"late_share": 0.6, "beyond_share": 0.6}, "more than all"),
        ({"first_period": "2026-13"}, "not a period"),
        ({"first_period": "0001-01"}, "too long ago"),
        ({"month_seconds": 0.0}, "too short"),
        ({"silence": timedelta(days=30)}, "silence"),
        ({"first_period": "2026-07"}, "not over yet"),
        ({"first_period": "9999-12", "months": 2}, "not over yet"),
        ({"first_period": "2026-06", "until_final": True}, "2026-06 cannot be final by now"),
        ({"first_period": "2026-01", "months": 6, "until_final": True}, "2026-06 cannot be final by now"),
        ({"months": 1000, "until_final": True}, "1000 months from 1970-01 on"),
    ],
)
def test_what_cannot_be_simulated_is_said(tmp_path: Path, options: dict[str, Any], fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        generate(Plan(**options), home_at(tmp_path), clock=at_now)
    assert not (tmp_path / "expected").exists()
