"""Many texts in one piece of memory, looked at column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opentab.core.periods import Int64s

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]

ROOM = 64  # bytes behind the last text: a look a little beyond an end does no harm
WORD = 8
LOOK_WORDS = 4  # that are searched at a time
LOOK_BYTES = LOOK_WORDS * WORD
FAR = 2**62  # behind all memory

_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


@dataclass(frozen=True, slots=True)
class Texts:
    """Where each text begins, and how many bytes it has. Of the memory nobody says to whom the rest belongs."""

    data: Bytes
    start: Int64s
    size: Int64s

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        """Texts that stand each for itself."""
        size = np.fromiter(map(len, texts), np.int64, len(texts))
        return cls(_with_room(np.frombuffer(b"".join(texts), np.uint8)), np.cumsum(size) - size, size)

    @classmethod
    def of_array(cls, array: pa.Array) -> Texts:
        """The values of an array of texts or bytes; null is empty."""
        first, past = array.offset, array.offset + len(array)
        offsets = np.frombuffer(array.buffers()[1], np.int32)[first : past + 1] if len(array) else np.zeros(1, np.int32)
        data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        start = offsets[:-1].astype(np.int64) - int(offsets[0])
        size = np.diff(offsets).astype(np.int64)
        return cls(_with_room(data), start, size)

    @classmethod
    def of_lines(cls, body: memoryview | bytes) -> Texts:
        """The lines of a body that ends in a newline, without their newlines: in the memory they are spaces."""
        data = _with_room(np.frombuffer(body, np.uint8))
        past = np.flatnonzero(data[: len(body)] == ord("\n"))
        data[past] = ord(" ")
        start = np.append([0], past[:-1] + 1) if len(past) else past
        return cls(data, start, past - start)

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """The texts of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.data) for part in parts)])
        start = [part.start + first for part, first in zip(parts, before[:-1].tolist(), strict=True)]
        return cls(
            np.concatenate([part.data for part in parts]),
            np.concatenate(start),
            np.concatenate([part.size for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> bytes:
        first = int(self.start[index])
        return self.data[first : first + int(self.size[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        whole = memoryview(self.data.data)
        for first, size in zip(self.start.tolist(), self.size.tolist(), strict=True):
            yield bytes(whole[first : first + size])

    @property
    def words(self) -> UInt64s:
        """The eight bytes from each place of the memory on."""
        return np.ndarray((len(self.data) - WORD + 1,), "<u8", buffer=self.data, strides=(1,))

    def words_at(self, at: Int64s, count: int) -> UInt64s:
        """The bytes from each of these places of the memory on, a row of so many words each.

        A few of them cost what one does: numpy has to begin anew wherever a place is not a multiple of eight.
        """
        size = count * WORD
        pieces = np.ndarray((len(self.data) - size + 1,), f"V{size}", buffer=self.data, strides=(1,))
        return pieces[at].view("<u8").reshape(len(at), count)

    @property
    def end(self) -> Int64s:
        """The byte behind each text."""
        return self.start + self.size

    @property
    def even_size(self) -> int | None:
        """How many bytes each text has, where all of them have as many."""
        smallest, largest = int(self.size.min(initial=2**62)), int(self.size.max(initial=0))
        return largest if smallest == largest else None

    def slice(self, first: int, past: int) -> Texts:
        """Those from one index up to another, with no more memory than they need. They lie in order."""
        begin, end = int(self.start[first]), int(self.start[past - 1] + self.size[past - 1])
        return Texts(self.data[begin : end + ROOM], self.start[first:past] - begin, self.size[first:past])

    def take(self, rows: Int64s | Bools) -> Texts:
        """Only some of them."""
        return Texts(self.data, self.start[rows], self.size[rows])

    def byte(self, column: int) -> Bytes:
        """The byte in this place of each text, or one that stands somewhere behind it."""
        return self.data[column:].take(self.start)

    def byte_at(self, columns: Int64s) -> Bytes:
        """The byte in its own place of each text."""
        return self.data.take(self.start + columns)

    def holds(self, at: Int64s, literal: bytes) -> Bools:
        """Whether the memory has just these bytes in each of the places."""
        parts = [literal[first : first + WORD] for first in range(0, len(literal), WORD)]
        words = self.words_at(at, len(parts))
        found = np.ones(len(at), np.bool_)
        for part, word in zip(parts, words.T, strict=True):
            if len(part) < WORD:
                word = word & np.uint64(256 ** len(part) - 1)
            found &= word == np.uint64(int.from_bytes(part, "little"))
        return found

    def find(self, byte: int, at: Int64s, *, bytes_max: int) -> Int64s:
        """Where a byte stands first from each of these places on, or FAR if it is not among the next so many.

        Each place is in a text, or right behind one; of bytes LOOK_BYTES are looked at together.
        """
        offset = _first_of(byte, self.words_at(at, LOOK_WORDS))
        found = at + offset
        left = np.flatnonzero(offset == LOOK_BYTES)
        found[left] = FAR
        for first in range(LOOK_BYTES, bytes_max, LOOK_BYTES):
            left = left[at[left] + first <= len(self.data) - LOOK_BYTES]
            if not len(left):
                break
            begin = at[left] + first
            offset = _first_of(byte, self.words_at(begin, LOOK_WORDS))
            there = offset < LOOK_BYTES
            found[left[there]] = begin[there] + offset[there]
            left = left[~there]
        return found

    def are(self, text: bytes) -> Bools:
        """Which of the texts are this one."""
        found: Bools = self.size == len(text)
        rows = np.flatnonzero(found)
        found[rows] = self.holds(self.start[rows], text)
        return found

    def to_array(self) -> pa.Array:
        """The same as an array of texts; they must be UTF-8."""
        if len(self) == 0:
            return pa.array([], pa.string())
        # Every second piece of the memory is a text; what lies between them is one, too, but is not taken.
        edges = np.empty(2 * len(self), np.int32)
        edges[::2], edges[1::2] = self.start, self.end
        pieces = pa.StringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(self.data))
        return pieces.take(pa.array(np.arange(0, len(edges), 2, dtype=np.int32)))


def _with_room(data: Bytes) -> Bytes:
    return np.concatenate([data, np.zeros(ROOM, np.uint8)])


def _first_of(byte: int, rows: UInt64s) -> Int64s:
    """Where a byte stands first in each of some rows of words; how long they are where it does not."""
    wanted = np.uint64(byte) * _ONES
    shift: Int64s | int = 0
    marks = np.zeros(len(rows), np.uint64)
    for column, words in enumerate(rows.T):
        missing = marks == 0
        if not missing.any():
            break
        others = words ^ wanted
        now = (others - _ONES) & ~others & _HIGHS  # the lowest bit is in the first byte that is wanted
        is_first = missing.all()
        marks = now if is_first else np.where(missing, now, marks)
        shift = column * WORD if is_first else np.where(missing, column * WORD, shift)
    found: Int64s = np.bitwise_count((marks & -marks) - np.uint64(1)).astype(np.int64) >> 3
    return found + shift
