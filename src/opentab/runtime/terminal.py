"""What people see: aligned tables, CSV, JSON lines, colours only on a terminal."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from opentab.runtime.csv_cells import guarded

BOLD, DIM, RED, GREEN, YELLOW, RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


def paint(text: str, colour: str, file: TextIO | None = None) -> str:
    """Colour a text if it goes to a terminal, unless NO_COLOR is set."""
    is_wanted = (file or sys.stdout).isatty() and not os.environ.get("NO_COLOR")
    return f"{colour}{text}{RESET}" if is_wanted else text


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 event, 2,000 events."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def printable(value: Any) -> str:
    """A value as text that cannot disturb a terminal."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="backslashreplace")
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_controls(text: str) -> str:
    """A text whose control characters are written as escapes."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """A text of several lines that cannot disturb a terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = ()) -> None:
    """An aligned table; the columns named in `right` are numbers."""
    flush_right = {columns.index(name) for name in right}
    texts = [[printable(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in texts)]) for i, name in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.rjust(w) if i in flush_right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    write(paint(line(list(columns)), BOLD))
    for row in texts:
        write(line(row))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma separated values with a header."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(guarded, columns))
    for row in rows:
        writer.writerow(["" if value is None else guarded(value) for value in row])


def print_json(objects: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line; JSON's own escapes keep it from disturbing a terminal."""
    for item in objects:
        text = json.dumps(item, ensure_ascii=False, default=_plain)
        sys.stdout.write(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def write(text: str = "", file: TextIO | None = None) -> None:
    """One line to standard output, or to another file."""
    (file or sys.stdout).write(text + "\n")


def complain(text: str) -> None:
    """One line to standard error."""
    sys.stderr.write(f"{paint('opentab:', RED, sys.stderr)} {text}\n")


# Those of Unicode too: line ends, and marks that turn the direction of writing.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class LiveLine:
    """One line that is written over on a terminal; elsewhere a line every few seconds."""

    def __init__(self, file: TextIO | None = None, *, every_seconds: float = 5.0) -> None:
        self._file = file or sys.stderr
        self._live = self._file.isatty()
        self._every = every_seconds
        self._next = 0.0
        self._shown = False

    def show(self, text: str, now: float) -> None:
        if self._live:
            self._file.write(f"\r\x1b[2K{text}")
            self._file.flush()
            self._shown = True
        elif now >= self._next:
            self._file.write(text + "\n")
            self._file.flush()
            self._next = now + self._every

    def say(self, text: str) -> None:
        """One line that stays."""
        self._file.write(f"\r\x1b[2K{text}\n" if self._live else f"{text}\n")
        self._file.flush()

    def close(self) -> None:
        if self._shown:
            self._file.write("\n")
            self._file.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return str(value)
