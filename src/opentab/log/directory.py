"""The embedded log: a directory to which any number of processes append.

    log/incoming/default-000000000017.seg     written, not yet in the journal
    log/archive/default/000000/000000016.seg  in the journal; kept for the audit
    log/aside/…                               being written
    log/default.lock                          held while a number is given out
    log/id                                    which log this is; copies keep it
    log/clock.json                            the last restart of the arrival clock, if there was one

Segments of a partition are numbered 1, 2, 3 … without gaps, so a position in the log is one number
a partition. Numbers are given out under a lock; nothing is ever listed but what is incoming, so
the cost of an append does not grow with the segments ever written.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

from opentab.core.errors import DiskFull, InputError, LogError, means_disk_full
from opentab.core.periods import to_us
from opentab.core.records import Spot
from opentab.log.clock import NAME as RESTART_NAME
from opentab.log.clock import mismatch, read_restart
from opentab.log.segment import Segment, SegmentHeader, encode_header, read_header, read_segment
from opentab.runtime.disk import make_directories, sync
from opentab.runtime.storage import Place

SEGMENT_BYTES_MAX = 8 * 1024 * 1024
SEGMENT_LINES_MAX = 65_536
ARCHIVE_BUCKET = 1000
LINE_BYTES = 512  # a line is mostly shorter
ASIDE_SECONDS_MAX = 3600
PARTITION_DEFAULT = "default"
PARTITION_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
ID_PATTERN = re.compile(r"[0-9a-f]{32}")
NAME_PATTERN = re.compile(r"(?P<partition>[A-Za-z0-9][A-Za-z0-9_.]{0,63})-(?P<number>\d{12})\.seg")

Clock = Callable[[], datetime]


def wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """An incoming segment, as a look at the directory shows it."""

    number: int
    name: str
    size: int
    arrived_ns: int


class DirectoryLog:
    """The log in one directory: where its segments are, which are new, how they are archived."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.incoming = path / "incoming"
        self.archive = path / "archive"
        self.aside = path / "aside"
        self.id_path = path / "id"

    def __str__(self) -> str:
        return f"the directory {self.path}"

    def create(self) -> None:
        """Make the log's directories where they are missing."""
        for directory in (self.incoming, self.archive, self.aside):
            make_directories(directory)

    def find_id(self) -> str | None:
        """Which log this is; None if it has no id yet."""
        try:
            text = self.id_path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise LogError(f"{self.id_path} cannot be read: {error}") from error
        if not ID_PATTERN.fullmatch(text):
            raise LogError(f"{self.id_path} holds no log id", hint="restore the file from a backup, or remove it")
        return text

    def make_id(self) -> str:
        """Which log this is. The id is made once and durable on return, also if several processes start together."""
        try:
            self.create()
            with self.lock("id"):
                known = self.find_id()
                if known is not None:
                    return known
                made = secrets.token_hex(16)
                aside = self.aside / f"{made}.tmp"
                with aside.open("w", encoding="ascii") as file:
                    file.write(f"{made}\n")
                    file.flush()
                    os.fsync(file.fileno())
                aside.rename(self.id_path)
                sync(self.path)
                return made
        except OSError as error:
            if means_disk_full(error):
                raise DiskFull(str(self.path)) from error
            raise LogError(f"the log {self.path} cannot be written: {error.strerror}") from error

    def incoming_path(self, partition: str, number: int) -> Path:
        return self.incoming / f"{partition}-{number:012d}.seg"

    def archive_path(self, partition: str, number: int) -> Path:
        bucket = number // ARCHIVE_BUCKET
        return self.archive / partition / f"{bucket:06d}" / f"{number:09d}.seg"

    def find(self, partition: str, number: int) -> Path | None:
        """Where the segment lies now, or None if it was never written."""
        for path in (self.incoming_path(partition, number), self.archive_path(partition, number)):
            if path.exists():
                return path
        return None

    def pending(self) -> dict[str, list[int]]:
        """The numbers of the incoming segments by partition, in order."""
        found: dict[str, list[int]] = {}
        try:
            with os.scandir(self.incoming) as entries:
                for entry in entries:
                    match = NAME_PATTERN.fullmatch(entry.name)
                    if match:
                        found.setdefault(match["partition"], []).append(int(match["number"]))
        except FileNotFoundError:
            return {}
        return {partition: sorted(numbers) for partition, numbers in sorted(found.items())}

    def waiting(self, offsets: dict[str, int]) -> dict[str, list[Waiting]]:
        """The incoming segments from `offsets` on, by partition and in order, with their size and time."""
        found: dict[str, list[Waiting]] = {}
        with suppress(FileNotFoundError), os.scandir(self.incoming) as entries:
            for entry in entries:
                match = NAME_PATTERN.fullmatch(entry.name)
                if match is None or int(match["number"]) <= offsets.get(match["partition"], 0):
                    continue
                with suppress(FileNotFoundError):  # archived by another pipeline meanwhile
                    stat = entry.stat()
                    segment = Waiting(int(match["number"]), entry.name, stat.st_size, stat.st_mtime_ns)
                    found.setdefault(match["partition"], []).append(segment)
        return {partition: sorted(segments) for partition, segments in sorted(found.items())}

    def unread(self, offsets: dict[str, int]) -> dict[str, list[int]]:
        """The incoming segments from `offsets` on, by partition."""
        waiting = {
            partition: [n for n in numbers if n > offsets.get(partition, 0)]
            for partition, numbers in self.pending().items()
        }
        return {partition: numbers for partition, numbers in waiting.items() if numbers}

    def stamp_after(self, partition: str, number: int) -> int | None:
        """The arrival that the segment after `number` is stamped with; None if there is none.

        It is asked under the partition's lock: a segment that is not there now arrives later.
        """
        with self.lock(partition):
            for _ in range(3):  # it may be archived between the look and the read
                path = self.find(partition, number + 1)
                if path is None:
                    return None
                with suppress(FileNotFoundError):
                    return read_header(path).arrived_us
        raise LogError(f"segment {number + 1} of log partition {partition!r} keeps moving", retry_helps=True)

    def close(self) -> None:
        """Nothing is held open."""

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        """The number and the arrival of the last segment of each partition."""
        found = {}
        for partition, numbers in self.pending().items():
            found[partition] = (numbers[-1], self.header(partition, numbers[-1]).arrived_us)
        return found

    def path_of(self, partition: str, number: int) -> Path:
        """Where the segment lies now; it must be somewhere."""
        path = self.find(partition, number)
        if path is None:
            raise LogError(
                f"segment {number} of log partition {partition!r} is gone from {self.path}",
                hint="restore the log directory from a backup",
            )
        return path

    def read(self, partition: str, number: int) -> Segment:
        """The segment, wherever it lies; it may be archived while we look."""
        try:
            return read_segment(self.path_of(partition, number))
        except FileNotFoundError:
            return read_segment(self.path_of(partition, number))

    def bytes_of(self, partition: str, number: int) -> bytes:
        """The segment's file as it is, wherever it lies."""
        try:
            return self.path_of(partition, number).read_bytes()
        except FileNotFoundError:
            return self.path_of(partition, number).read_bytes()

    def line(self, partition: str, number: int, byte: int) -> bytes:
        """The line that begins at a byte of a segment, without its end."""
        return self.lines(partition, number, [byte])[0]

    def lines(self, partition: str, number: int, bytes_at: Iterable[int]) -> list[bytes]:
        """The lines that begin at these bytes of a segment. What lies between them is not read.

        So no checksum is checked: callers compare what they get with what the journal knows of these lines.
        """
        for _ in range(2):  # it may be archived between the look and the read
            with suppress(FileNotFoundError), self.path_of(partition, number).open("rb") as file:
                return [_line_at(file.fileno(), byte) for byte in bytes_at]
        raise LogError(f"segment {number} of log partition {partition!r} is gone from {self.path}")

    def header(self, partition: str, number: int) -> SegmentHeader:
        return read_header(self.path_of(partition, number))

    def restamp(self) -> None:
        """Give every incoming file the time that its header names: copying a home loses it."""
        for partition, numbers in self.pending().items():
            for number in numbers:
                path = self.incoming_path(partition, number)
                with suppress(FileNotFoundError):  # archived by another pipeline meanwhile
                    arrived_ns = read_header(path).arrived_us * 1000
                    if path.stat().st_mtime_ns != arrived_ns:
                        os.utime(path, ns=(arrived_ns, arrived_ns))

    def sweep_aside(self) -> None:
        """Remove what producers that died left unfinished an hour ago or earlier."""
        for path in self.aside.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ASIDE_SECONDS_MAX:
                    path.unlink()

    def restore(self, offsets: dict[str, int]) -> int:
        """Bring back archived segments from `offsets` on: a ledger restored to an earlier
        batch reads on from there. Returns how many came back."""
        count = 0
        if not self.archive.is_dir():
            return 0
        for directory in sorted(self.archive.iterdir()):
            partition = directory.name
            with self.lock(partition):
                first = last = offsets.get(partition, 0) + 1
                while self.archive_path(partition, last).exists():
                    last += 1
                # From the last one down: killed in between, what is left in the archive is found again.
                for number in range(last - 1, first - 1, -1):
                    with suppress(FileNotFoundError):
                        self.archive_path(partition, number).rename(self.incoming_path(partition, number))
                        count += 1
        return count

    def archive_upto(self, offsets: dict[str, int]) -> int:
        """Move the segments that the journal holds out of the way. Returns how many.

        The newest segment of a partition stays, so that its number is never given out twice.
        They go in order, so a crash leaves no gap among the incoming ones.
        """
        moved = 0
        for partition, numbers in self.pending().items():
            done = [n for n in numbers[:-1] if n <= offsets.get(partition, 0)]
            for number in done:
                target = self.archive_path(partition, number)
                make_directories(target.parent)
                with suppress(FileNotFoundError):  # another pipeline was faster
                    self.incoming_path(partition, number).rename(target)
            moved += len(done)
        return moved

    @contextmanager
    def lock(self, partition: str) -> Iterator[None]:
        """Hold the partition's lock; the kernel lets go of it if we die."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f"{partition}.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Producer:
    """Appends to one partition of a log. When `append` returns, the lines are on the disk."""

    def __init__(
        self, log: DirectoryLog, partition: str = PARTITION_DEFAULT, *,
        clock: Clock = wall_clock, silence_max: timedelta | None = None,
    ) -> None:  # fmt: skip
        """Appends are refused more than `silence_max` after the last one; None: however long the log was silent."""
        if not PARTITION_PATTERN.fullmatch(partition):
            raise InputError(
                f"{partition!r} cannot name a log partition",
                hint="use up to 64 letters, digits, _ and . and begin with a letter or digit",
            )
        self.log = log
        self.partition = partition
        self._clock = clock
        self._silence_max = silence_max
        self._last = 0
        self._last_arrived_us = 0
        self._body_at = 0  # in the last segment
        try:
            log.create()
        except OSError as error:
            raise LogError(f"the log {log.path} cannot be made: {error.strerror}") from error

    def append(self, body: bytes) -> int:
        """Write whole lines as one segment and return its number once it is durable."""
        if not body.endswith(b"\n"):
            body += b"\n"
        aside = self.log.aside / f"{secrets.token_hex(8)}.tmp"
        try:
            with self.log.lock(self.partition):
                return self._append_locked(body, aside)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if means_disk_full(error):
                raise DiskFull(str(self.log.path)) from error
            raise LogError(f"the log {self.log.path} cannot be written: {error.strerror}") from error

    def put(self, lines: Sequence[bytes]) -> list[Spot]:
        """Write lines as one segment and return where each stands, once it is durable."""
        number = self.append(b"".join(line + b"\n" for line in lines))
        starts = accumulate((len(line) + 1 for line in lines[:-1]), initial=self._body_at)
        return [Spot(self.partition, number, byte) for byte in starts]

    def _append_locked(self, body: bytes, aside: Path) -> int:
        number = self._next_number()
        now_us = to_us(self._clock())
        self._check_clock(now_us)
        # Within a partition arrival only goes forward, although the clocks of its producers differ a little. It takes
        # the smallest step: however quick the appends are, they do not run ahead of the clock.
        arrived_us = max(now_us, self._last_arrived_us + 1)
        header = encode_header(self.partition, number, arrived_us, body)
        with aside.open("wb") as file:
            file.write(header)
            file.write(body)
            file.flush()
            os.utime(file.fileno(), ns=(arrived_us * 1000, arrived_us * 1000))
            os.fsync(file.fileno())
        aside.rename(self.log.incoming_path(self.partition, number))
        sync(self.log.incoming)
        self._last, self._last_arrived_us, self._body_at = number, arrived_us, len(header)
        return number

    def _check_clock(self, now_us: int) -> None:
        """Raise if the last arrival and this clock contradict each other, unless a restart has settled that."""
        if not self._last:
            return
        what = f"log partition {self.partition!r}"
        wrong = mismatch(what, self._last_arrived_us, now_us, self._silence_max)
        if wrong is None:
            return
        restart = read_restart(Place.of(self.log.path) / RESTART_NAME)
        if restart is None or self._last > restart.upto.get(self.partition, 0):
            raise wrong
        wrong = mismatch(what, restart.at_us, now_us, self._silence_max)
        if wrong is not None:
            raise wrong
        self._last_arrived_us = restart.at_us

    def _next_number(self) -> int:
        """The number to give out next; call it under the lock.

        Archiving goes in order and leaves the newest, so where our last segment is still incoming
        and the one after it is not, nobody has written since.
        """
        if (
            self._last > 0
            and self.log.incoming_path(self.partition, self._last).exists()
            and not self.log.incoming_path(self.partition, self._last + 1).exists()
        ):
            return self._last + 1
        numbers = self.log.pending().get(self.partition)
        if not numbers:
            if (self.log.archive / self.partition).exists():
                raise LogError(
                    f"the newest segment of log partition {self.partition!r} is gone from {self.log.path}",
                    hint="restore it, or ingest into another --partition",
                )
            return 1
        self._last = numbers[-1]
        self._last_arrived_us = self.log.header(self.partition, self._last).arrived_us
        return self._last + 1


def _line_at(file: int, byte: int) -> bytes:
    """The line that begins there, in one read where it is as short as most."""
    size = LINE_BYTES
    while True:
        piece = os.pread(file, size, byte)
        end = piece.find(b"\n")
        if end >= 0 or len(piece) < size:
            return piece[:end] if end >= 0 else piece
        size *= 16
