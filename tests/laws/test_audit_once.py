"""The judge knows that every event counts once: each sentence of ADR 16, and any log against a slow reading of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audit_ledger import Arrival, Ledger, at, envelope, failing, line, seen_row
from law_examples import examples
from opentab.audit import trace, verify
from opentab.audit.days import Days
from opentab.audit.logs import Logs
from opentab.audit.murmur import murmur
from opentab.audit.raw import RawDirectory
from opentab.audit.recompute import recompute
from opentab.audit.wire import Counted, decide
from opentab.core.events import UNBOUNDED_US, Reason
from opentab.core.periods import to_us
from opentab.simulator.generator import Plan, generate, read_rejections

TIME = "2026-01-10T11:00:00Z"


def event(id_: Any = "a", **changes: Any) -> bytes:
    return line(**({"time": TIME, "id": id_, "amount": "5"} | changes))


def reversal(reverses: Any = "a", **changes: Any) -> bytes:
    return event(**({"id_": ..., "reverses": reverses, "reason": "sent twice", "actor": "ops"} | changes))


def verdicts(path: Path, *batches: list[bytes], window: str = "7d") -> list[list[str]]:
    """What becomes of each line: one partition, a segment a batch, an hour apart. The audit agrees with the reference."""
    ledger = Ledger(path, window=window)
    for number, lines in enumerate(batches, start=1):
        ledger.arrive(at(10) + timedelta(hours=number), *lines)
        ledger.batch(default=(number, number))
    check(ledger)
    return [[one.verdict for one in ledger.arrivals if one.batch == n] for n in range(1, len(batches) + 1)]


def check(ledger: Ledger) -> None:
    """The audit agrees with the journal, and has found in the log just what the reference has."""
    report = verify(ledger.home, ledger.journal)
    assert failing(report) == {}
    found = Counter(one.verdict for one in ledger.arrivals)
    assert (report.events, report.duplicates) == (found["counted"], found["duplicate"])
    assert report.rejections == found.total() - found["counted"] - found["duplicate"]


C, D, X = "counted", "duplicate", "conflicting_duplicate"
UNKNOWN, TWICE, MISMATCH = "reversal_unknown", "reversal_twice", "reversal_mismatch"


# --- the rule ----------------------------------------------------------------------------------


def test_an_id_counts_once_in_a_batch_and_across(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event(), event(), event("b")], [event(), event("b")]) == [[C, D, C], [D, D]]


def test_an_event_without_an_id_or_with_an_empty_one_always_counts(tmp_path: Path) -> None:
    batch = [event(...), event(...), event(""), event(""), event(None)]
    assert verdicts(tmp_path, batch, batch) == [[C] * 5, [C] * 5]


def test_the_same_payload_is_the_same_values_not_the_same_bytes(tmp_path: Path) -> None:
    again = [
        event(time="2026-01-10T12:00:00.000+01:00"),
        event(amount="5.000000"),
        event(amount=5),
        event(currency="EUR", note="again"),
        envelope({"type": "CALL", "amount": "5"}, id="a", time=TIME),
    ]
    assert verdicts(tmp_path, [event()], again) == [[C], [D] * 5]


@pytest.mark.parametrize(
    "changes", [{"time": "2026-01-10T11:00:00.000001Z"}, {"customer": "noah"}, {"type": "DATA"}, {"amount": "5.000001"}]
)
def test_any_other_value_is_a_conflict_and_the_first_stays(tmp_path: Path, changes: dict[str, Any]) -> None:
    other = event(**changes)
    assert verdicts(tmp_path, [event(), other], [other, event()]) == [[C, X], [X, D]]


def test_a_source_is_a_part_of_the_key(tmp_path: Path) -> None:
    def sent(source: Any) -> bytes:
        return envelope({"type": "CALL", "amount": "5"}, id="a", time=TIME, source=source)

    assert verdicts(tmp_path, [event(), sent(None), sent(...), sent("/x"), sent("/y"), sent("/x")]) == [
        [C, D, D, C, C, D]
    ]
    # Outside of an envelope it is a field like any other.
    assert verdicts(tmp_path / "plain", [event(source="/x"), event(source=5)]) == [[C, D]]


def test_an_id_that_was_rejected_is_free(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event(amount="x"), event(type="FAX"), event()]) == [["bad_amount", "unknown_type", C]]


@pytest.mark.parametrize(("beyond", "verdict"), [(0, D), (1, C)])
def test_the_window_is_within(tmp_path: Path, beyond: int, verdict: str) -> None:
    """A difference of exactly the window is still a duplicate; a microsecond more counts, and counts from then on."""
    ledger = Ledger(tmp_path, window="1h")
    for number, after in enumerate([timedelta(), timedelta(hours=1, microseconds=beyond), timedelta(hours=2)]):
        ledger.arrive(at(10) + after, event())
        ledger.batch(default=(number + 1, number + 1))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, verdict, D if beyond else C]


def test_a_repeat_does_not_move_the_window(tmp_path: Path) -> None:
    assert verdicts(tmp_path, *[[event()]] * 5, window="2h") == [[C], [D], [D], [C], [D]]


def test_a_conflict_does_not_move_the_window(tmp_path: Path) -> None:
    other = event(amount="6")
    assert verdicts(tmp_path, [event()], [other], [other], [other], [event()], window="2h") == [[C], [X], [X], [C], [X]]


def test_unbounded_never_ends_and_off_lets_every_event_count(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "never", window="unbounded")
    assert ledger.rules.dedupe_us == UNBOUNDED_US
    for number, day in enumerate([at(10), at(10, month=12), at(10, month=12).replace(year=2500)], start=1):
        ledger.arrive(day, event())
        ledger.batch(default=(number, number))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, D, D]
    assert verdicts(tmp_path / "off", [event(), event()], [event(amount="6")], window="off") == [[C, C], [C]]


def test_each_batch_has_the_window_of_its_own_rules(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number, window_us in enumerate([2_000_000, 2_000_000, 2_000_000, 999_999, 1_000_000], start=1):
        ledger.change(dedupe_us=window_us)
        ledger.arrive(at(10, second=number), event())
        ledger.batch(default=(number, number))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, D, D, C, D]


def test_what_is_forgotten_stays_forgotten(tmp_path: Path) -> None:
    """However long the window is made later. At just the window it is still known."""
    ledger = Ledger(tmp_path)
    batches = [(1, event(), 2), (3, event("b"), 2), (4, event("b"), 2), (5, event(), 60), (6, event("b"), 60)]
    for number, (second, raw, window) in enumerate(batches, start=1):
        ledger.change(dedupe_us=window * 1_000_000)
        ledger.arrive(at(10, second=second), raw)
        ledger.batch(default=(number, number))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, C, D, C, D]
    seconds = [
        (record.forgotten_us or 0) // 1_000_000 - to_us(at(10)) // 1_000_000 for record in ledger.journal.records
    ]
    assert seconds == [-1, 1, 2, 2, 2]


def test_what_came_before_it_was_off_is_forgotten_and_what_came_then_never_known(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, window="unbounded")
    for number, window_us in enumerate([UNBOUNDED_US, UNBOUNDED_US, 0, UNBOUNDED_US, UNBOUNDED_US], start=1):
        ledger.change(dedupe_us=window_us)
        ledger.arrive(at(10, second=number), event())
        ledger.batch(default=(number, number))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, D, C, C, D]


def test_a_reversal_of_what_is_forgotten_is_unknown(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number, (raw, window_us) in enumerate([(event(), 10**9), (event("b"), 0), (reversal(), 10**9)], start=1):
        ledger.change(dedupe_us=window_us)
        ledger.arrive(at(10, second=number), raw)
        ledger.batch(default=(number, number))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, C, UNKNOWN]


@pytest.mark.parametrize(("minutes", "verdict"), [(9, D), (11, C)])
def test_a_partition_behind_the_others_keeps_what_it_may_repeat_until_it_is_idle(
    tmp_path: Path, minutes: int, verdict: str
) -> None:
    ledger = Ledger(tmp_path)
    ledger.change(dedupe_us=1_000_000)
    ledger.arrive(at(10), event(), partition="slow")
    ledger.batch(slow=(1, 1))
    ledger.arrive(at(10) + timedelta(minutes=minutes), event("b"), partition="fast")
    ledger.batch(fast=(1, 1))
    ledger.change(dedupe_us=UNBOUNDED_US)
    ledger.arrive(at(11), event(), partition="slow")
    ledger.batch(slow=(2, 2))
    check(ledger)
    assert ledger.arrivals[-1].verdict == verdict


def test_within_a_batch_arrival_decides_then_partition_then_number_then_byte(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.arrive(at(10), event(amount="1"), partition="b")
    ledger.arrive(at(10), event(amount="2"), event(amount="3"), partition="a")
    ledger.arrive(at(11), event(amount="4"), partition="a")
    ledger.arrive(at(10, 11), event(amount="5"), partition="c")
    ledger.batch(b=(1, 1), a=(1, 2), c=(1, 1))
    check(ledger)
    assert [(one.partition, one.verdict) for one in sorted(ledger.arrivals, key=lambda one: one.order)] == [
        ("c", C), ("a", X), ("a", X), ("b", X), ("a", X),
    ]  # fmt: skip


def test_batches_come_before_arrival(tmp_path: Path) -> None:
    """What a later batch took is later, also if it arrived before: the window has no other end."""
    ledger = Ledger(tmp_path, window="1h")
    ledger.arrive(at(10), event(), partition="slow")
    ledger.arrive(at(20), event(), partition="fast")
    ledger.batch(fast=(1, 1))
    ledger.batch(slow=(1, 1))
    check(ledger)
    assert [one.verdict for one in ledger.arrivals] == [C, D]


def test_a_duplicates_time_counts_for_the_watermark_and_a_conflicts_does_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    late = "2026-01-20T00:00:00Z"
    ledger.arrive(at(20), event("a", time=late), partition="a")
    ledger.arrive(at(20, second=1), event("a", time=late), partition="b")
    ledger.arrive(at(20, second=2), event("a", time="2026-01-20T11:00:00Z"), partition="c")
    ledger.batch(a=(1, 1), b=(1, 1), c=(1, 1))
    check(ledger)
    states = ledger.journal.records[0].partitions
    assert states["a"].latest_us == states["b"].latest_us is not None
    assert states["c"].latest_us is None


# --- reversals ---------------------------------------------------------------------------------


def test_a_reversal_takes_an_event_back_once(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event()], [reversal(), reversal()], [reversal()]) == [[C], [C, TWICE], [TWICE]]


def test_a_reversal_counts_with_the_sign_turned_on_the_originals_day(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.arrive(at(10), event())
    ledger.arrive(at(12), reversal())
    ledger.batch(default=(1, 1))
    ledger.batch(default=(2, 2))
    report = verify(ledger.home, ledger.journal, keep_totals=True)
    assert failing(report) == {}
    assert (report.events, report.amount_micros) == (2, 0)
    days = {(row["day"], row["amount_micros"]) for row in ledger.journal.entry_rows}
    assert len({day for day, _ in days}) == 1
    assert {micros for _, micros in days} == {5_000_000, -5_000_000}


@pytest.mark.parametrize(
    "changes", [{"time": "2026-01-10T11:00:01Z"}, {"customer": "noah"}, {"type": "DATA"}, {"amount": "-5"}]
)
def test_a_reversal_must_match_what_counted(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert verdicts(tmp_path, [event()], [reversal(**changes), reversal()]) == [[C], [MISMATCH, C]]


def test_what_did_not_count_in_an_earlier_batch_cannot_be_taken_back(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event(), reversal(), reversal("b")], [event("b", amount="x"), reversal("b")]) == [
        [C, UNKNOWN, UNKNOWN],
        ["bad_amount", UNKNOWN],
    ]


def test_a_reversal_comes_within_the_window(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event()], [], [reversal()], window="2h")[2] == [C]
    assert verdicts(tmp_path / "b", [event()], [], [], [reversal()], window="2h")[3] == [UNKNOWN]
    assert verdicts(tmp_path / "off", [event()], [reversal()], window="off") == [[C], [UNKNOWN]]


def test_unknown_comes_before_mismatch_and_mismatch_before_twice(tmp_path: Path) -> None:
    other = reversal(amount="6")
    assert verdicts(tmp_path, [event()], [reversal(), other], [], [other], window="2h") == [
        [C], [C, MISMATCH], [], [UNKNOWN],
    ]  # fmt: skip


def test_an_event_that_counts_again_can_be_taken_back_again(tmp_path: Path) -> None:
    batches = [[event()], [reversal()], [], [event()], [reversal()], [reversal()]]
    assert verdicts(tmp_path, *batches, window="2h") == [[C], [C], [], [C], [C], [TWICE]]


def test_an_event_that_was_taken_back_is_still_known(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event()], [reversal()], [event(), event(amount="6")]) == [[C], [C], [D, X]]


def test_a_reversal_with_an_id_is_an_event_with_an_id(tmp_path: Path) -> None:
    one = reversal(id_="r")
    assert verdicts(tmp_path, [event(), event("b")], [one, one], [one, reversal("b", id_="r"), event("r")]) == [
        [C, C], [C, D], [D, X, X],
    ]  # fmt: skip


def test_a_reversal_cannot_be_taken_back(tmp_path: Path) -> None:
    back = [reversal("r"), reversal("r", amount="-5")]
    assert verdicts(tmp_path, [event()], [reversal(id_="r")], back) == [[C], [C], [MISMATCH, MISMATCH]]


def test_a_reversal_of_its_own_id_is_a_conflict(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event()], [reversal(id_="a"), reversal(id_="b", reverses="b")]) == [[C], [X, UNKNOWN]]


def test_a_reversal_that_was_rejected_leaves_its_id_free(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [event()], [reversal(id_="r", amount="6"), reversal(id_="r")]) == [[C], [MISMATCH, C]]


def test_a_reversal_refers_to_its_own_source(tmp_path: Path) -> None:
    def sent(source: str, **data: str) -> bytes:
        usage = {"type": "CALL", "amount": "5"} | data
        return envelope(usage, id=... if data else "a", time=TIME, source=source)

    back = {"reverses": "a", "reason": "r", "actor": "o"}
    assert verdicts(tmp_path, [sent("/x"), event()], [sent("/y", **back), sent("/x", **back), reversal()]) == [
        [C, C], [UNKNOWN, C, C],
    ]  # fmt: skip


R = Reason


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (reversal(reason=...), R.MISSING_FIELD),
        (reversal(actor=..., customer=5), R.MISSING_FIELD),
        (reversal(5, actor=...), R.MISSING_FIELD),
        (reversal("", reason="x"), R.WRONG_TYPE),
        (reversal(5), R.WRONG_TYPE),
        (reversal([]), R.WRONG_TYPE),
        (reversal(reason=""), R.WRONG_TYPE),
        (reversal(actor=""), R.WRONG_TYPE),
        (reversal(actor=None, time="x"), R.WRONG_TYPE),
        (reversal(reason=5), R.WRONG_TYPE),
        (envelope(source=5), R.WRONG_TYPE),
        (envelope(source=[], time="x"), R.WRONG_TYPE),
        (envelope({"type": "CALL", "amount": "1", "reverses": "a", "reason": "r"}), R.MISSING_FIELD),
        (envelope({"type": "CALL", "amount": "1", "reverses": "a", "reason": "r", "actor": 1}), R.WRONG_TYPE),
        (reversal(amount="x"), R.BAD_AMOUNT),
    ],
)
def test_what_is_wrong_with_a_line_itself(raw: bytes, expected: Reason) -> None:
    ledger_rules = Ledger(Path("unused")).rules
    assert decide(raw, arrived_us=to_us(at(31)), rules=ledger_rules, days=Days("UTC")) is expected


def test_what_a_line_says_of_itself() -> None:
    def said(raw: bytes) -> Counted:
        verdict = decide(raw, arrived_us=to_us(at(31)), rules=Ledger(Path("unused")).rules, days=Days("UTC"))
        assert isinstance(verdict, Counted)
        return verdict

    one = said(reversal(id_="r"))
    assert (one.id, one.source, one.reverses, one.reason, one.actor) == ("r", None, "a", "sent twice", "ops")
    assert one.amount_micros == -5_000_000
    data = {"type": "CALL", "amount": "1", "reverses": "a", "reason": "r", "actor": "o"}
    one = said(envelope(data, time=TIME, source="/x", reverses=5, reason=5))
    assert (one.id, one.source, one.reverses, one.reason, one.actor) == ("7", "/x", "a", "r", "o")
    # Nothing is taken back: the rest is of no concern.
    one = said(event(reverses=None, reason=5, actor=""))
    assert (one.reverses, one.reason, one.actor, one.amount_micros) == (None, None, None, 5_000_000)
    assert said(envelope(time=TIME, reverses="a")).reverses is None
    assert said(event("")).id is None


# --- any log -----------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "c", "\x00", ""])


@st.composite
def raw_lines(draw: st.DrawFn) -> bytes:
    """Few ids and few values, so that most of them meet."""
    values = {
        "time": draw(st.sampled_from([TIME, "2026-01-10T12:00:00+01:00", "2026-01-09T11:00:00Z"])),
        "amount": draw(st.sampled_from(["5", "5", "5.0", "-5", "0"])),
        "customer": draw(st.sampled_from(["emma", "emma", "noah"])),
    }
    id_ = draw(IDS | st.just(...))
    kind = draw(st.sampled_from(["plain", "plain", "reversal", "envelope", "bad"]))
    if kind == "bad":
        return event(id_, **values, type="FAX")
    back: dict[str, Any] = {}
    if kind == "reversal" or (kind == "envelope" and draw(st.booleans())):
        back = {"reverses": draw(st.sampled_from(["a", "b", "c"])), "reason": "r", "actor": "o"}
    if kind == "envelope":
        data = {"type": "CALL", "amount": values["amount"]} | back
        source = draw(st.sampled_from(["/x", "", None]))
        return envelope(data, id=id_, time=values["time"], subject=values["customer"], source=source)
    return event(id_, **values, **back)


@st.composite
def logs(draw: st.DrawFn) -> list[list[tuple[str, int, list[bytes]]]]:
    """Batches of segments: partition, seconds since the last one in any partition, lines."""
    segment = st.tuples(
        st.sampled_from(["a", "b", "10", "9"]),
        st.sampled_from([0, 0, 1, 5, 11]),
        st.lists(raw_lines(), min_size=1, max_size=5),
    )
    return draw(st.lists(st.lists(segment, min_size=1, max_size=4), min_size=1, max_size=5))


@examples(120)
@given(logs(), st.sampled_from(["10s", "1s", "unbounded", "off"]), st.integers(0, 4))
@example([[("a", 0, [event("a"), event("a")])]], "10s", 0)
def test_any_log_gives_what_the_rule_says(
    batches: list[list[tuple[str, int, list[bytes]]]], window: str, changed_at: int
) -> None:
    with tempfile.TemporaryDirectory() as path:
        ledger = Ledger(Path(path), window=window)
        now, numbers = at(10), Counter[str]()
        for index, segments in enumerate(batches):
            taken: dict[str, tuple[int, int]] = {}
            for partition, seconds, lines in segments:
                now += timedelta(seconds=seconds)
                ledger.arrive(now, *lines, partition=partition)
                numbers[partition] += 1
                taken[partition] = (taken.get(partition, (numbers[partition],))[0], numbers[partition])
            if index == changed_at:
                ledger.change(dedupe_us=5_000_000)
            ledger.batch(**taken)
        check(ledger)
        for customer in ("emma", "noah"):
            found = trace(ledger.home, ledger.journal, "2026-01", customer)
            places = {event.place for event in found.events()}
            mine = [one for one in ledger.arrivals if one.event and one.event.customer == customer]
            assert places == {one.place for one in mine if one.verdict == "counted"}


def test_ids_come_out_of_the_fast_path(tmp_path: Path) -> None:
    """Of some thousand regular lines all are decided in DuckDB, with their ids and sources."""
    ledger = Ledger(tmp_path)
    for part in range(3):
        lines = [event(f"{part}-{i}", customer=f"c{i % 7}", amount=f"{i}.5") for i in range(1000)]
        lines += [event(f"0-{i}", customer=f"c{i % 7}", amount=f"{i}.5") for i in range(0, 100, 3)]
        lines += [event("0-1", amount="9"), event(...), event(..., customer="x")]
        lines += [envelope(id=f"e{i}", time=TIME, source=f"/{i % 3}") for i in range(500)]
        lines += [envelope(id="e7", time=TIME, source="/0")] * 2 + [reversal("0-5", customer="c5", amount="5.5")]
        ledger.arrive(at(10, 13 + part), *lines)
        ledger.batch(default=(part + 1, part + 1))
    check(ledger)
    assert Counter(one.verdict for one in ledger.arrivals) == {
        C: 3000 + 6 + 501 + 1, D: 34 * 3 + 1000 + 5, X: 3, UNKNOWN: 1, TWICE: 1,
    }  # fmt: skip
    with duckdb.connect() as con:
        recompute(con, Logs(RawDirectory(ledger.home.log_path)), ledger.journal.records)
        (fast,) = con.execute("SELECT count(id) FROM counted").fetchone() or (0,)
        assert fast == 3 * (1000 + 34 + 1 + 500 + 2)  # one group


@pytest.mark.parametrize("segments", [1, 2, 100])
def test_the_simulators_bills_hold_each_event_once_however_batches_are_cut(tmp_path: Path, segments: int) -> None:
    ledger = Ledger(tmp_path, pipeline={"batch_events_max": 100})
    plan = Plan(
        events_per_customer=40, months=2, sources=2, duplicate_share=0.2, conflict_share=0.2, bad_share=0.05,
        cloudevents_share=0.3, variety_share=0.3,
    )  # fmt: skip
    for _ in range(2):
        generate(plan, ledger.home, clock=lambda: at(10, month=7))
    waiting = {partition: len(numbers) for partition, numbers in ledger.log.pending().items()}
    for first in range(1, max(waiting.values()) + 1, segments):
        taken = {name: (first, min(first + segments - 1, last)) for name, last in waiting.items() if first <= last}
        ledger.batch(**taken)
    check(ledger)
    assert verify(ledger.home, ledger.journal).checks[-1].name == "expected bills"
    rejected = Counter(row["reason"] for row in ledger.journal.rejection_rows)
    assert rejected == read_rejections(ledger.home.expected_path)
    assert rejected[X] > 100


# --- what the journal remembers ----------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three batches: a counts in the first and has a duplicate in it; b counts; the second has a conflict."""
    made = Ledger(tmp_path, window="3d")
    made.arrive(at(10), event(), event(), event("b"), event(...))
    made.arrive(at(11), event(), event("b", amount="6"), envelope(id="e", time=TIME, source="/ü"))
    made.batch(default=(1, 1))
    made.batch(default=(2, 2))
    check(made)
    return made


def rows_of(ledger: Ledger, key: str) -> list[Arrival]:
    return [one for one in ledger.arrivals if one.key and one.key[1] == key]


def lost(ledger: Ledger) -> None:
    del ledger.journal.seen_rows[0]


def doubled(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(ledger.journal.seen_rows[0])


def moved(ledger: Ledger) -> None:
    ledger.journal.seen_rows[0]["byte"] += 1


def of_another_batch(ledger: Ledger) -> None:
    ledger.journal.seen_rows[0]["batch"] = 2


def of_another_arrival(ledger: Ledger) -> None:
    ledger.journal.seen_rows[0]["arrived_us"] += 1


def repeat_of_an_earlier_batch(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "a")[2]))


def conflict_as_counted(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "b")[1]))


def counted_as_rejected(ledger: Ledger) -> None:
    ledger.journal.seen_rows[0]["payload"] = 0


def duplicate_as_rejected(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "a")[2], payload=0))


def other_key(ledger: Ledger) -> None:
    ledger.journal.seen_rows[-1]["key_low"] += 1


def wrongly_forgotten(ledger: Ledger) -> None:
    records = ledger.journal.records
    records[1] = msgspec.structs.replace(records[1], forgotten_us=(records[1].forgotten_us or 0) + 1)


def not_forgotten(ledger: Ledger) -> None:
    ledger.journal.records[1] = msgspec.structs.replace(ledger.journal.records[1], forgotten_us=None)


def key_without_its_source(ledger: Ledger) -> None:
    ledger.journal.seen_rows[-1]["key_high"], ledger.journal.seen_rows[-1]["key_low"] = murmur(b"e", 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lost, "it counted, and the journal does not remember its id"),
        (doubled, "the journal remembers its id 2 times"),
        (moved, "the journal remembers an id that did not count there"),
        (of_another_batch, "batch 2, log partition 'default', number 1, byte"),
        (of_another_arrival, "arrived at 2026-01-10T12:00:00.000001Z, the log 2026-01-10T12:00:00.000000Z"),
        (repeat_of_an_earlier_batch, "the journal remembers an id that did not count there"),
        (conflict_as_counted, "the journal remembers an id that did not count there"),
        (counted_as_rejected, "the journal says that an event with an id did not count there"),
        (duplicate_as_rejected, "the journal says that an event with an id did not count there"),
        (other_key, "under a key that is not of the id 'e'"),
        (wrongly_forgotten, "the journal says 2026-01-08T12:00:00.000001Z, the log says 2026-01-08T12:00:00.000000Z"),
        (not_forgotten, "batch 2, the arrival before which ids are forgotten: the journal says nothing"),
        (key_without_its_source, "under a key that is not of the id 'e'"),
    ],
)
def test_each_change_of_what_is_remembered_is_found(
    ledger: Ledger, change: Callable[[Ledger], None], says: str
) -> None:
    change(ledger)
    found = failing(verify(ledger.home, ledger.journal))
    assert set(found) == {"ids"}
    assert any(says in sample for sample in found["ids"]), found["ids"]


def test_what_two_tasks_took_in_one_batch_may_stand_there_twice(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "a")[1]))
    check(ledger)


def test_what_two_tasks_took_in_one_batch_may_say_that_it_did_not_count(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "a")[1], payload=0))
    check(ledger)


def test_a_rejected_event_may_be_remembered(ledger: Ledger) -> None:
    ledger.journal.seen_rows.append(seen_row(rows_of(ledger, "b")[1], payload=0))
    check(ledger)


def test_what_the_window_has_passed_may_be_forgotten(ledger: Ledger) -> None:
    """At exactly the window it is still needed. A longer window does not bring back what was forgotten."""
    remembered = list(ledger.journal.seen_rows)
    ledger.arrive(at(13), event("c"))
    ledger.batch(default=(3, 3))
    ledger.journal.seen_rows = ledger.journal.seen_rows[1:]
    assert set(failing(verify(ledger.home, ledger.journal))) == {"ids"}
    ledger.arrive(at(13, second=1), event("d"))
    ledger.batch(default=(4, 4))
    check(ledger)
    ledger.change(dedupe_us=UNBOUNDED_US)
    ledger.arrive(at(14), event("f"))
    ledger.batch(default=(5, 5))
    check(ledger)
    ledger.journal.seen_rows.append(remembered[0])
    check(ledger)


def test_a_journal_of_an_earlier_version_remembers_nothing(tmp_path: Path) -> None:
    made = Ledger(tmp_path, window="off")
    made.is_old = True
    made.arrive(at(10), event(), event(), event(...))
    made.batch(default=(1, 1))
    assert made.journal.records[0].forgotten_us is None
    check(made)
    assert next(c for c in verify(made.home, made.journal).checks if c.name == "ids").note == "dedupe is off"
    made.change(dedupe_us=UNBOUNDED_US)
    made.arrive(at(11), event(), event())
    made.batch(default=(2, 2))
    check(made)
    del made.journal.seen_rows[0]
    assert set(failing(verify(made.home, made.journal))) == {"ids"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"duplicates": 0}, "batch 1, duplicates: the journal says 0, the log says 1"),
        ({"without_id": 0}, "batch 1, events without an id: the journal says 0, the log says 1"),
    ],
)
def test_a_batch_says_how_many(ledger: Ledger, changes: dict[str, int], says: str) -> None:
    ledger.journal.records[0] = msgspec.structs.replace(ledger.journal.records[0], **changes)
    found = failing(verify(ledger.home, ledger.journal))
    assert set(found) == {"batches"}
    assert says in found["batches"]


def test_a_conflict_that_was_counted_is_found(ledger: Ledger) -> None:
    ledger.journal.rejection_rows.clear()
    assert (
        "the journal says nothing, the log says conflicting_duplicate"
        in (failing(verify(ledger.home, ledger.journal))["rejections"][0])
    )


def test_known_hashes() -> None:
    assert murmur(b"", 0) == (0, 0)
    assert murmur(b"foo", 42) == (-840311307571801102, -6739155424061121879)
    high, low = murmur(b"The quick brown fox jumps over the lazy dog", 0)
    assert f"{high % 2**64:016x}{low % 2**64:016x}" == "e34bbc7bbc071b6c7a433ca9c49a9347"


# --- trace -------------------------------------------------------------------------------------


def test_trace_leaves_out_duplicates_and_conflicts_and_knows_reversals(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.arrive(at(10), event(), event("b", amount="2"), event(customer="noah"))
    ledger.arrive(at(11), event(), event("b", amount="3"), event("c", amount="1"), reversal())
    ledger.batch(default=(1, 1))
    ledger.batch(default=(2, 2))
    check(ledger)
    found = trace(ledger.home, ledger.journal, "2026-01", "emma")
    assert [(e.batch, e.amount_micros, e.reverses) for e in found.events()] == [
        (1, 5_000_000, None), (1, 2_000_000, None), (2, 1_000_000, None), (2, -5_000_000, "a"),
    ]  # fmt: skip
    *_, last = found.events()
    assert (last.reason, last.actor, last.raw) == ("sent twice", "ops", reversal())
    assert found.amount_micros == 3_000_000


def test_trace_finds_the_original_in_another_months_bill(tmp_path: Path) -> None:
    """On time in January; its repeat comes with an event that March bills, long after."""
    ledger = Ledger(tmp_path, window="unbounded")
    days: list[tuple[datetime, list[bytes]]] = [
        (at(10), [event()]),
        (at(10, month=3), [line(time="2026-03-10T00:00:00Z")]),
        (at(11, month=3), [event(), event("b", amount="1")]),
    ]
    for number, (day, lines) in enumerate(days, start=1):
        ledger.arrive(day, *lines)
        ledger.batch(default=(number, number))
    check(ledger)
    found = trace(ledger.home, ledger.journal, "2026-03", "emma")
    assert [(e.batch, e.amount_micros, e.adjustment) for e in found.events()] == [
        (2, 125_000, False), (3, 1_000_000, True),
    ]  # fmt: skip
