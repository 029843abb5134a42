"""The embedded log: durable, numbered without gaps, and no dearer when it is old."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opentab.core.errors import ClockMismatch, DiskFull, InputError, LogError, SegmentDamaged
from opentab.core.periods import to_us
from opentab.log import DirectoryLog, Producer, read_segment
from opentab.log.clock import Restart, read_restart, write_restart
from opentab.log.ingest import ingest
from opentab.runtime.storage import Place


@pytest.fixture
def log(tmp_path: Path) -> DirectoryLog:
    return DirectoryLog(tmp_path / "log")


def body_of(log: DirectoryLog, partition: str, number: int) -> bytes:
    path = log.find(partition, number)
    assert path is not None
    return bytes(read_segment(path).body)


def test_a_segment_holds_the_bytes_and_the_arrival_time(log: DirectoryLog) -> None:
    arrived = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    number = Producer(log, clock=lambda: arrived).append(b"a\r\nb\x00\xff\n")
    segment = read_segment(log.incoming_path("default", number))
    assert bytes(segment.body) == b"a\r\nb\x00\xff\n"
    assert (segment.header.number, segment.header.lines, segment.header.partition) == (1, 2, "default")
    assert datetime.fromtimestamp(segment.header.arrived_us / 1e6, UTC) == arrived


def test_arrival_goes_forward_though_clocks_differ_a_little(log: DirectoryLog) -> None:
    clock = iter([datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, 23, 59, 1, tzinfo=UTC)])
    producer = Producer(log, clock=lambda: next(clock))
    first, second = producer.append(b"a"), producer.append(b"b")
    assert log.header("default", first).arrived_us < log.header("default", second).arrived_us
    later = Producer(log, clock=lambda: datetime(2026, 1, 1, 23, 59, 30, tzinfo=UTC)).append(b"c")
    assert log.header("default", second).arrived_us < log.header("default", later).arrived_us


def test_quick_appends_do_not_run_ahead_of_the_clock(log: DirectoryLog) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    producer = Producer(log, clock=lambda: now)
    stamps = [log.header("default", producer.append(b"a")).arrived_us for _ in range(5)]
    assert stamps == [to_us(now) + step for step in range(5)]


def test_an_append_long_before_the_last_arrival_is_refused(log: DirectoryLog) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    Producer(log, clock=lambda: datetime(2099, 1, 1, tzinfo=UTC)).append(b"a")
    with pytest.raises(ClockMismatch) as refused:
        Producer(log, clock=lambda: now).append(b"b")
    assert refused.value.fact == (
        "the last arrival in log partition 'default' is 2099-01-01T00:00:00.000Z, ahead of this machine's clock, "
        "2026-01-02T00:00:00.000Z: nothing is appended"
    )
    assert "opentab log clock --restart" in str(refused.value)
    assert log.pending() == {"default": [1]} and not list(log.aside.iterdir())
    Producer(log, "other", clock=lambda: now).append(b"c")


def test_an_append_long_after_the_last_arrival_is_refused(log: DirectoryLog) -> None:
    """The clock may have jumped ahead. One that is open since before the jump refuses, too."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    producer = Producer(log, clock=lambda: now, silence_max=timedelta(days=30))
    producer.append(b"a")
    now += timedelta(days=30)
    producer.append(b"b")
    now += timedelta(days=31)
    with pytest.raises(ClockMismatch, match=r"more than log\.silence_max later: nothing is appended .*--restart"):
        producer.append(b"c")
    Producer(log, clock=lambda: now, silence_max=timedelta(days=32)).append(b"c")
    now += timedelta(days=4000)
    Producer(log, clock=lambda: now, silence_max=None).append(b"d")
    assert log.pending() == {"default": [1, 2, 3, 4]}


def test_a_restart_of_the_clock_lets_appends_go_on(log: DirectoryLog) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    producer = Producer(log, clock=lambda: datetime(2099, 1, 1, tzinfo=UTC))
    producer.append(b"a")
    ours = Producer(log, clock=lambda: now, silence_max=timedelta(days=30))
    write_restart(Place.of(log.path) / "clock.json", Restart(to_us(now), {"default": 1}))
    assert ours.append(b"b") == 2
    assert log.header("default", 2).arrived_us == to_us(now) + 1, "arrival goes on from the restart"
    # It settles what was there, not what comes later.
    Producer(log, clock=lambda: now + timedelta(days=9999)).append(b"c")
    with pytest.raises(ClockMismatch):
        ours.append(b"d")


def test_a_flipped_bit_in_a_restart_is_noticed(tmp_path: Path) -> None:
    place, restart = Place.of(tmp_path / "clock.json"), Restart(1_767_312_000_000_000, {"default": 1})
    write_restart(place, restart)
    whole = place.read()
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            place.path.write_bytes(flipped)
            assert read_restart(place) in (None, restart), (at, bit)
    place.path.write_bytes(b'{"at_us":1767312000000000,"upto":{"default":1}}')  # of an earlier version
    assert read_restart(place) == restart


APPEND_MANY = """
import sys
from pathlib import Path
from opentab.log import DirectoryLog, Producer
producer = Producer(DirectoryLog(Path(sys.argv[1])))
for i in range(50):
    producer.append(f"{sys.argv[2]}-{i}\\n".encode())
"""


def test_many_producers_share_one_partition(log: DirectoryLog) -> None:
    commands = [[sys.executable, "-c", APPEND_MANY, str(log.path), f"p{i}"] for i in range(3)]
    processes = [subprocess.Popen(command) for command in commands]
    archived = 0
    while any(process.poll() is None for process in processes):
        numbers = log.pending().get("default", [])
        archived += log.archive_upto({"default": numbers[len(numbers) // 2]}) if numbers else 0
    for process in processes:
        assert process.wait() == 0
    bodies = [body_of(log, "default", n) for n in range(1, 151)]
    assert log.find("default", 151) is None
    assert sorted(bodies) == sorted(f"p{i}-{k}\n".encode() for i in range(3) for k in range(50))
    assert archived > 0


def test_the_newest_segment_is_never_archived(log: DirectoryLog) -> None:
    producer = Producer(log)
    for _ in range(3):
        producer.append(b"x")
    assert log.archive_upto({"default": 3}) == 2
    assert log.pending() == {"default": [3]}
    assert Producer(log).append(b"y") == 4
    assert log.unread({"default": 3}) == {"default": [4]}
    assert log.archive_upto({"default": 4}) == 1


def test_a_ledger_restored_to_an_earlier_batch_finds_its_segments(log: DirectoryLog) -> None:
    producer = Producer(log)
    for _ in range(5):
        producer.append(b"x")
    log.archive_upto({"default": 5})
    assert log.restore({"default": 2}) == 2
    assert log.pending() == {"default": [3, 4, 5]}


def test_a_restore_that_was_killed_goes_on(log: DirectoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(log)
    for _ in range(6):
        producer.append(b"x")
    log.archive_upto({"default": 6})
    real = Path.rename
    moves = 0

    def dies(self: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == 3:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", dies)
        log.restore({"default": 1})
    log.restore({"default": 1})
    assert log.pending() == {"default": [2, 3, 4, 5, 6]}


def test_damage_is_seen(log: DirectoryLog) -> None:
    number = Producer(log).append(b"some line\n")
    path = log.incoming_path("default", number)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(SegmentDamaged, match="damaged"):
        read_segment(path)
    path.write_bytes(b"hello\n")
    with pytest.raises(SegmentDamaged, match="not a log segment"):
        read_segment(path)
    path.unlink()
    with pytest.raises(LogError, match="is gone"):
        log.header("default", number)


def test_a_lost_newest_segment_is_not_numbered_again(log: DirectoryLog) -> None:
    producer = Producer(log)
    producer.append(b"a")
    producer.append(b"b")
    log.archive_upto({"default": 2})
    log.incoming_path("default", 2).unlink()
    with pytest.raises(LogError, match="newest segment"):
        Producer(log).append(b"c")


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "x" * 65])
def test_partition_names_are_checked(log: DirectoryLog, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a log partition"):
        Producer(log, name)


def test_a_full_disk_is_said_plainly(log: DirectoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(log)

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="no space left"):
            producer.append(b"x")
    assert list(log.aside.iterdir()) == []
    assert producer.append(b"x") == 1


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 5))
def test_ingest_keeps_every_byte(data: bytes, size: int, lines_max: int) -> None:
    segments: list[bytes] = []

    class Recorder:
        def append(self, body: bytes) -> int:
            segments.append(body)
            return len(segments)

    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    count = ingest(iter(chunks), Recorder(), lines_max=lines_max)  # type: ignore[arg-type]
    missing_newline = data and not data.endswith(b"\n")
    assert b"".join(segments) == data + (b"\n" if missing_newline else b"")
    assert all(body.count(b"\n") <= lines_max for body in segments)
    assert count == data.count(b"\n") + bool(missing_newline)
