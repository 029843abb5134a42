"""Texts in CSV files, so that no spreadsheet takes one for a formula.

A spreadsheet runs what begins with = + - @, a tab or a carriage return, and customers' names are anybody's. Such a text
gets an apostrophe in front. So does one that has apostrophes before such a character, so nothing is ambiguous: whoever
reads takes one apostrophe away again. Plain numbers, as amounts are written, stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

FORMULA = r"^'*[=+\-@\t\r]"
NUMBER = r"-?[0-9]+(\.[0-9]+)?"  # the whole of a text
GUARDED = r"^'('*[=+\-@\t\r])"  # what is in the group stays

_FORMULA, _NUMBER, _GUARDED = re.compile(FORMULA), re.compile(NUMBER), re.compile(GUARDED)


def guarded(value: Any) -> Any:
    """A value as a cell; what is no text is no formula."""
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def unguarded(text: str) -> str:
    """The text of a cell that is a text."""
    return _GUARDED.sub(r"\1", text)


def guarded_sql(column: str) -> str:
    """The same in DuckDB, for a column of texts."""
    formula = FORMULA.replace("'", "''")
    is_formula = f"regexp_matches({column}, '{formula}') and not regexp_full_match({column}, '{NUMBER}')"
    return f"case when {is_formula} then '''' || {column} else {column} end"
