"""The form in which a producer writes its lines, and all lines of that form read at once.

One producer writes all of its events alike: the same keys in the same order with the same marks between them, and
only the values differ. So one line is looked at closely, and the others need only be compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from opentab.core.periods import Int64s
from opentab.wire.byte_columns import Bools, Texts

FIELDS = ("time", "customer", "type", "amount", "id", "currency")
REQUIRED = frozenset(FIELDS[:4])
NOT_PLAIN = frozenset((b"specversion", b"reverses"))  # lines with these mean something else
FORMS_MAX = 8
BLOCK_LINES = 16_384
FEW = 256  # lines that are sooner read one by one
PIECE_BYTES_MAX, VALUE_BYTES_MAX = 1_024, 4_096  # what is longer is read line by line
QUOTE, BACKSLASH = ord('"'), ord("\\")

_KEY = re.compile(rb' *"([^"]*)" *: *')
_VALUE = re.compile(rb'"([^"]*)"|([-0-9.]+)')
_MARK = re.compile(rb" *([,}])")


@dataclass(frozen=True, slots=True)
class Formed:
    """Lines of one form: the index of each, and its fields by name, without quotes."""

    at: Int64s
    fields: dict[str, Texts]
    amount_is_text: bool


@dataclass(frozen=True, slots=True)
class Form:
    """Pieces that are the same in every line, and between each two of them a value."""

    pieces: list[bytes]
    names: list[str]
    amount_is_text: bool

    @classmethod
    def of(cls, line: bytes) -> Form | None:
        """The form of a line that holds no escapes; None if it is not certainly a plain event.

        All values are texts, only the amount may be a number. Keys that are not ours may stand between.
        """
        pieces, names = [], []
        amount_is_text = True
        opened = line.find(b"{")
        if opened < 0 or line[:opened].strip(b" "):
            return None
        piece_at, at = 0, opened + 1
        while True:
            key = _KEY.match(line, at)
            value = _VALUE.match(line, key.end()) if key else None
            mark = _MARK.match(line, value.end()) if value else None
            if not (key and value and mark):
                return None
            kind = 1 if value[2] is None else 2
            if kind == 2:
                if key[1] != b"amount":
                    return None
                amount_is_text = False
            if len(value[kind]) >= VALUE_BYTES_MAX:
                return None
            names.append(key[1])
            pieces.append(line[piece_at : value.start(kind)])
            piece_at, at = value.end(kind), mark.end()
            if mark[1] == b"}":
                break
        pieces.append(line[piece_at:])
        texts = [name.decode("utf-8", "replace") for name in names]
        plain = len(set(names)) == len(names) and set(texts) >= REQUIRED and not NOT_PLAIN & set(names)
        if not plain or line[at:].strip(b" ") or max(map(len, pieces)) > PIECE_BYTES_MAX:
            return None
        return cls(pieces, texts, amount_is_text)

    def read(self, lines: Texts) -> tuple[dict[str, Texts], Int64s]:
        """The values in those of the lines that are of this form, and which those are.

        Of each line all bytes are accounted for: what is no value has been compared, and no value holds a quote. Only
        an amount that is a number and stands last may hold one, and whoever reads it sees that it is no number.
        """
        rows = np.arange(len(lines))
        begin, end = lines.start, lines.end
        edges: list[Int64s] = []  # where each value begins and ends
        fits = begin + len(self.pieces[0]) <= end
        for piece, following in pairwise(self.pieces):
            fits[fits] = lines.holds(begin if fits.all() else begin[fits], piece)
            if not fits.all():
                rows, begin, end, *edges = (column[fits] for column in (rows, begin, end, *edges))
            start = begin + len(piece)
            quote = following.find(b'"')
            if quote < 0:
                begin = end - len(following)
            else:
                begin = lines.find(QUOTE, start, bytes_max=VALUE_BYTES_MAX) - quote
            edges += [start, begin]
            fits = (start <= begin) & (begin + len(following) <= end)
        last = self.pieces[-1]
        fits &= begin + len(last) == end
        fits[fits] = lines.holds(begin[fits], last)
        edges = [column[fits] for column in edges]
        spans = zip(self.names, edges[::2], edges[1::2], strict=True)
        return {name: Texts(lines.data, at, past - at) for name, at, past in spans if name in FIELDS}, rows[fits]


def formed(lines: Texts) -> tuple[list[Formed], Int64s]:
    """The lines that are written alike, form by form, and the index of each of the others.

    They are taken in blocks that stay in a processor's cache.
    """
    found: list[Formed] = []
    others = np.ones(len(lines), np.bool_)
    if len(lines) >= FEW:
        for first in range(0, len(lines), BLOCK_LINES):
            found += _formed(lines.slice(first, min(first + BLOCK_LINES, len(lines))), first)
    for one in found:
        others[one.at] = False
    return found, np.flatnonzero(others)


def _formed(lines: Texts, first: int) -> Iterator[Formed]:
    """The same for a block of which the first line has this index."""
    left = np.flatnonzero(_without_escapes(lines))
    for _ in range(FORMS_MAX):
        if len(left) < FEW:
            break
        form = Form.of(lines[int(left[0])])
        if form is None:
            left = left[1:]
            continue
        fields, rows = form.read(lines.take(left))  # the first of them is of this form, and more may be
        yield Formed(first + left[rows], fields, form.amount_is_text)
        left = np.delete(left, rows)


def _without_escapes(lines: Texts) -> Bools:
    """Which of the lines hold no backslash and no control character, and are UTF-8."""
    end = lines.end
    data = lines.data[: int(end[-1])]
    clean = np.ones(len(lines), np.bool_)
    if data.min(initial=32) >= 32 and data.max(initial=32) <= 126 and not np.count_nonzero(data == BACKSLASH):
        return clean
    odd = np.flatnonzero((data - 32 > 94) | (data == BACKSLASH))
    line = np.searchsorted(lines.start, odd, side="right") - 1
    inside = odd < end[line]
    line, byte = line[inside], data[odd[inside]]
    clean[line[byte < 128]] = False
    for index in np.unique(line[byte >= 128]).tolist():
        clean[index] &= _is_utf8(lines[index])
    return clean


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
