"""Shapes: how most lines of a log look, as one anchored pattern that decides them in DuckDB.

Producers write line after line with the same keys in the same order. A shape is learned from one line
that counts: its marks, keys and white space stay as they are, and only its values are left open. So a
line that fits has exactly those keys, each of them once, and no escapes; its values are then checked
in SQL. What fits no shape, or fits one with any value out of the ordinary, is left to wire.decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opentab.audit.wire import MARK, SPACE, TEXT, TOKEN, WORD, NotJsonError, read
from opentab.core.events import CUSTOMER_BYTES_MAX, Rules

LINE_BYTES_MAX = 4096  # a longer line teaches no shape
TEXT_PATTERN = r'[^"\\\x00-\x1f]*'
NUMBER_PATTERN = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
Path = tuple[str | None, ...]
PLAIN: dict[Path, str] = {
    ("time",): "time",
    ("customer",): "customer",
    ("type",): "type",
    ("amount",): "amount",
    ("currency",): "currency",
    ("id",): "id",
}
ENVELOPE: dict[Path, str] = {
    ("time",): "time",
    ("subject",): "customer",
    ("data", "type"): "type",
    ("data", "amount"): "amount",
    ("data", "currency"): "currency",
    ("id",): "id",
    ("source",): "source",
}
KEY = ("id", "source")
# Instants that SQL decides; the few others, and every odd way to write them, go to wire.decide.
TIME_PATTERN = (
    r"[12]\d{3}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
    r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
MILLISECONDS_PATTERN = r"\d{1,14}"
AT_US_MAX = 32_503_680_000_000_000  # the year 3000; the first is 1970
CONTROL_PATTERN = r"[\x7f-\x{9f}]"  # a shape leaves out those below a space
AMOUNT_PATTERN = r"-?\d{1,9}(?:\.\d{1,6})?"


@dataclass(frozen=True, slots=True)
class Shape:
    """The look of a line: its pattern, what the pattern's groups are, how the time is written."""

    pattern: str
    names: tuple[str, ...]
    time_is_text: bool


def shape_of(line: bytes, *, keyed: bool) -> Shape | None:
    """The shape of a line that counts and is no reversal; None if it has none worth learning.

    `keyed`: whether it gives the id and the source, which takes a little longer.
    """
    if b"\\" in line or len(line) > LINE_BYTES_MAX:
        return None
    try:
        value = read(line)
    except NotJsonError:
        return None
    text = line.decode().rstrip(" \t\r\n")
    wanted = ENVELOPE if "specversion" in value else PLAIN
    pattern, names, time_is_text = [], [], True
    path: list[str | None] = []  # the key we are at in each open container; None in a list
    key_follows = False
    at = 0
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        pattern.append(re.escape(token[SPACE]))
        if token[MARK]:
            pattern.append(re.escape(token[MARK]))
            if token[MARK] in "{[":
                path.append("" if token[MARK] == "{" else None)
            elif token[MARK] in "}]":
                path.pop()
            key_follows = token[MARK] in "{," and bool(path) and path[-1] is not None
        elif key_follows:
            path[-1] = token[TEXT]
            key_follows = False
            pattern.append(re.escape(f'"{token[TEXT]}"'))
        else:
            name = wanted.get(tuple(path))
            if name in KEY and not keyed:
                name = None
            pattern.append(_value_pattern(token, fixed=path == ["specversion"], captured=name is not None))
            if name and not token[WORD]:
                names.append(name)
            if name == "time":
                time_is_text = token.lastindex == TEXT
    return Shape("^" + "".join(pattern) + r"[ \t\r]*\n$", tuple(names), time_is_text)


def _value_pattern(token: re.Match[str], *, fixed: bool, captured: bool) -> str:
    if token[WORD]:
        return token[WORD]
    if fixed:
        return re.escape(f'"{token[TEXT]}"')
    inside, quote = (TEXT_PATTERN, '"') if token.lastindex == TEXT else (NUMBER_PATTERN, "")
    return f"{quote}({inside}){quote}" if captured else f"{quote}{inside}{quote}"


def select_counted(shape: Shape, rules: Rules, source: str) -> str:
    """SQL: the lines of `source` (n, slice, latest_us, line) that fit the shape and certainly count."""
    names = ", ".join(_quoted(name) for name in shape.names)
    types = ", ".join(_quoted(name) for name in rules.types) or "NULL"
    currency = f"AND f.currency = {_quoted(rules.currency)}" if "currency" in shape.names else ""
    key = f"{_field(shape, 'id')} AS id, {_field(shape, 'source')} AS source"
    time_pattern = TIME_PATTERN if shape.time_is_text else MILLISECONDS_PATTERN
    # Materialized: else the pattern is matched again for every field that a condition asks for.
    return f"""
        WITH fitting AS MATERIALIZED (
            SELECT n, slice, latest_us, regexp_extract(line, {_quoted(shape.pattern)}, [{names}]) AS f
            FROM {source}
            WHERE strlen(line) - 1 <= {rules.event_bytes_max}
        ), plain AS (
            SELECT n, slice, latest_us, f.customer AS customer, f.type AS type, f.time AS time, {key},
                {"if(right(f.time, 1) = 'Z', 1, 6)" if shape.time_is_text else "0"} AS zone_chars,
                try_cast(f.amount AS DECIMAL(15, 6)) AS amount
            FROM fitting
            WHERE f.time <> ''
              AND regexp_full_match(f.time, {_quoted(time_pattern)})
              AND regexp_full_match(f.amount, {_quoted(AMOUNT_PATTERN)})
              AND f.type IN ({types})
              AND strlen(f.customer) BETWEEN 1 AND {CUSTOMER_BYTES_MAX}
              AND f.customer NOT IN ('.', '..')
              AND NOT regexp_matches(f.customer, {_quoted(CONTROL_PATTERN)})
              {currency}
        ), timed AS (
            SELECT n, slice, latest_us, customer, type, id, source,
                {_TEXT_INSTANT if shape.time_is_text else _NUMBER_INSTANT} AS at_us,
                CAST(CAST(amount AS DECIMAL(38, 6)) * 1000000 AS BIGINT) AS amount_micros
            FROM plain
        )
        SELECT n, slice, at_us, customer, type, amount_micros, nullif(id, '') AS id, source
        FROM timed
        WHERE at_us BETWEEN 0 AND least(latest_us, {AT_US_MAX}) AND amount_micros IS NOT NULL
    """


_NUMBER_INSTANT = "try_cast(time AS BIGINT) * 1000"
_TEXT_INSTANT = """
    epoch_us(try_cast(left(time, length(time) - zone_chars) AS TIMESTAMP))
    - if(zone_chars = 1, 0,
         if(right(time, 6)[1] = '-', -60000000, 60000000)
         * (coalesce(try_cast(right(time, 5)[1:2] AS BIGINT), 0) * 60
            + coalesce(try_cast(right(time, 2) AS BIGINT), 0)))
"""


def _field(shape: Shape, name: str) -> str:
    return f"f.{name}" if name in shape.names else "CAST(NULL AS VARCHAR)"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
