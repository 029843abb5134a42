"""Texts into the values of events, many at once, and which of them are certain.

Whatever is not of a common shape is left to exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.events import CUSTOMER_BYTES_MAX
from opentab.core.money import AMOUNT_DIGITS_MAX
from opentab.core.periods import DAY_US, SECOND_US, Int64s
from opentab.wire.byte_columns import WORD, Bools, Texts

Int32s = npt.NDArray[np.int32]

AMOUNT_TEXT_MAX = 18  # an amount of 9 digits, sign, point and 6 decimals fits
TIME_TEXT_MIN, TIME_TEXT_MAX = 20, 32  # RFC 3339, up to 6 decimals and an offset
TIME_MARKS = ((4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":"))
MILLISECONDS = "0000-00-00T00:00:00.000Z"
FRACTION_AT = 19
FRACTION_DIGITS = 6


def instants_of(texts: Texts) -> tuple[Int64s, Bools]:
    """The common shapes of RFC 3339 in microseconds; lower case, leap seconds and the like are not certain."""
    if texts.even_size == len(MILLISECONDS):
        return _milliseconds_of(texts)
    sure = (texts.size >= TIME_TEXT_MIN) & (texts.size <= TIME_TEXT_MAX)
    for column, mark in TIME_MARKS:
        sure &= texts.byte(column) == ord(mark)
    (year, is_year), (month, is_month), (day, is_day) = (_number(texts, *at) for at in ((0, 1, 2, 3), (5, 6), (8, 9)))
    days, sure = _days_of(year, month, day, sure & is_year & is_month & is_day)
    second = np.zeros(len(texts), np.int32)
    for columns, last in (((11, 12), 23), ((14, 15), 59), ((17, 18), 59)):
        value, is_number = _number(texts, *columns)
        sure &= is_number & (value <= last)
        second = second * 60 + value
    at_us = days * DAY_US + second * np.int64(SECOND_US)
    fraction_us, end, fraction_is_sure = _fractions(texts)
    at_us += fraction_us
    sure &= fraction_is_sure
    zulu = (texts.byte_at(end) == ord("Z")) & (texts.size == end + 1)
    if not zulu.all():
        offset_us, offset_is_sure = _offsets(texts, end)
        at_us -= np.where(zulu, 0, offset_us)
        sure &= zulu | offset_is_sure
    return at_us, sure


def _milliseconds_of(texts: Texts) -> tuple[Int64s, Bools]:
    """Times with milliseconds and a Z, as most are written: each in three numbers of eight bytes."""
    sure = np.ones(len(texts), np.bool_)
    digits, pairs = [], []  # what each byte says as a digit, and as the first of two
    for word, found in zip(_WORDS, texts.words_at(texts.start, len(_WORDS)).T, strict=True):
        sure &= (found & word.fixed) == word.wanted
        units = found & word.units
        sure &= (units + word.sixes & word.fixed) == 0  # more than 9 and six reach the upper four bits
        digits.append(units.view(np.int64))
        pairs.append(digits[-1] * 10 + (digits[-1] >> 8))
    date, clock, rest = pairs
    year = (date & 255) * 100 + (date >> 16 & 255)
    days, sure = _days_of(year, date >> 40 & 255, clock & 255, sure)
    hour, minute, second = clock >> 24 & 255, clock >> 48 & 255, rest >> 8 & 255
    sure &= (hour <= 23) & (minute <= 59) & (second <= 59)
    millisecond = (rest >> 32 & 255) * 10 + (digits[2] >> 48 & 255)
    return days * DAY_US + ((hour * 60 + minute) * 60 + second) * SECOND_US + millisecond * 1000, sure


def _days_of(
    year: npt.NDArray[np.integer], month: npt.NDArray[np.integer], day: npt.NDArray[np.integer], sure: Bools
) -> tuple[Int64s, Bools]:
    """Days since 1970-01-01 of dates, and which of them there are."""
    sure = sure & (year >= 1) & (month >= 1) & (month <= 12)
    at = np.where(sure, year * 12 + month - 1, 12)
    return _MONTH_DAYS[at] + (day - 1), sure & (day >= 1) & (day <= _MONTH_LENGTH[at])


def micros_of(texts: Texts, *, is_text: Bools | bool) -> tuple[Int64s, Bools]:
    """Amounts, in quotes or as JSON numbers, as micros."""
    sure = texts.size <= AMOUNT_TEXT_MAX
    size = np.minimum(texts.size, AMOUNT_TEXT_MAX).astype(np.uint8)
    sign = texts.byte(0)
    negative = (sign == ord("-")) & (size > 0)
    signed = negative | ((sign == ord("+")) & (size > 0))
    micros = np.zeros(len(texts), np.int64)
    digits = np.zeros(len(texts), np.uint8)
    decimals = np.zeros(len(texts), np.uint8)
    points = np.zeros(len(texts), np.uint8)
    for column in range(int(size.max(initial=0))):
        byte = texts.byte(column)
        inside = size > column
        if column == 0:
            inside &= ~signed
        digit = byte - np.uint8(48)
        is_digit = inside & (digit < 10)
        is_point = inside & (byte == ord(".")) & (digits > 0)
        sure &= ~inside | is_digit | is_point
        micros = np.where(is_digit, micros * 10 + digit, micros)
        digits += is_digit
        decimals += is_digit & (points > 0)
        points += is_point
    sure &= (points == 0) | ((points == 1) & (decimals > 0))
    sure &= (digits > 0) & (decimals <= 6) & (digits - decimals <= AMOUNT_DIGITS_MAX)
    # A number of JSON has no plus, and no zero before other digits.
    first = texts.byte_at(signed.astype(np.int64))
    plain = (sign != ord("+")) & ((first != ord("0")) | (digits - decimals == 1))
    sure &= is_text | plain
    micros *= _POWERS[np.minimum(decimals, 6)]
    return np.where(negative, -micros, micros), sure


def are_customers(names: pa.Array, texts: Texts) -> Bools:
    """Which of some names may be customers; they are given as an array, and as the texts of that array."""
    sure = (texts.size >= 1) & (texts.size <= CUSTOMER_BYTES_MAX)
    data = texts.data[: int(texts.size.sum())]
    # 0xC2 leads U+0080 to U+009F, control characters too, among others.
    if data.size and (data.min() < 32 or data.max() > 126) and ((data < 32) | (data == 127) | (data == 0xC2)).any():
        controls = pc.match_substring_regex(names, r"[\x00-\x1f\x7f-\x{9f}]")
        sure &= ~np.asarray(controls.to_numpy(zero_copy_only=False), dtype=np.bool_)
    for at in np.flatnonzero(texts.size <= 2).tolist():
        sure[at] &= texts[at] not in (b".", b"..")
    return sure


def _number(texts: Texts, *columns: int) -> tuple[Int32s, Bools]:
    """The digits in these places as one number, and where all of them are digits."""
    value = np.zeros(len(texts), np.int32)
    sure = np.ones(len(texts), np.bool_)
    for column in columns:
        digit = texts.byte(column) - np.uint8(48)
        sure &= digit < 10
        value = value * 10 + digit
    return value, sure


def _fractions(texts: Texts) -> tuple[Int64s, Int64s, Bools]:
    """The fraction of the second in microseconds, the place behind it, and where it is certain."""
    inside = texts.byte(FRACTION_AT) == ord(".")
    fraction = np.zeros(len(texts), np.int32)
    end = FRACTION_AT + inside.astype(np.int64)
    for column in range(FRACTION_AT + 1, FRACTION_AT + 1 + FRACTION_DIGITS):
        digit = texts.byte(column) - np.uint8(48)
        inside &= (digit < 10) & (texts.size > column)
        fraction = fraction * 10 + np.where(inside, digit, 0)
        end += inside
    return fraction.astype(np.int64), end, end != FRACTION_AT + 1  # a point needs a digit behind it


def _offsets(texts: Texts, end: Int64s) -> tuple[Int64s, Bools]:
    """The offset from UTC that stands at `end`, in microseconds, and which of them are certain."""
    marks = [texts.byte_at(end + k) for k in range(6)]
    digits = [marks[k].astype(np.int64) - 48 for k in (1, 2, 4, 5)]
    sure: Bools = (texts.size == end + 6) & ((marks[0] == ord("+")) | (marks[0] == ord("-")))
    sure &= marks[3] == ord(":")
    for digit in digits:
        sure &= (digit >= 0) & (digit <= 9)
    hours, minutes = digits[0] * 10 + digits[1], digits[2] * 10 + digits[3]
    sure &= (hours <= 23) & (minutes <= 59)
    offset_us = (hours * 60 + minutes) * 60 * SECOND_US
    return np.where(marks[0] == ord("-"), -offset_us, offset_us), sure


class _Word(NamedTuple):
    """Eight bytes of a shape as numbers of 64 bits: how to find that all digits are some, and all else is as it is."""

    wanted: np.uint64  # the shape itself, with zeros for digits
    fixed: np.uint64  # the bits of it that are known: of a digit the upper four
    units: np.uint64  # the others
    sixes: np.uint64  # one for each digit

    @classmethod
    def of(cls, shape: str) -> _Word:
        units = bytes(0x0F if byte == "0" else 0 for byte in shape)
        wanted, fixed, lower, sixes = (
            np.uint64(int.from_bytes(word, "little"))
            for word in (shape.encode(), bytes(0xFF ^ unit for unit in units), units, bytes(6 & unit for unit in units))
        )
        return cls(wanted, fixed, lower, sixes)


_WORDS = [_Word.of(MILLISECONDS[at : at + WORD]) for at in range(0, len(MILLISECONDS), WORD)]


def _months() -> tuple[Int64s, Int32s]:
    """Days from 1970-01-01 to the first day of each month since January of the year 0, and how long each is."""
    firsts = np.arange("0000-01", "10000-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return firsts[:-1], np.diff(firsts).astype(np.int32)


_MONTH_DAYS, _MONTH_LENGTH = _months()
_POWERS = 10 ** np.arange(6, -1, -1)
