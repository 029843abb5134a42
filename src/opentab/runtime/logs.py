"""What our processes log for operators: one file a process in the home's logs/, as text or as JSON lines.

    logger = logging.getLogger("opentab.billing")
    logger.info("files compacted", extra=fields(files=64, position=1200))

A message is always the same words, so that it can be searched for and counted. What differs stands in the fields.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from opentab.core.periods import format_us
from opentab.runtime.config import Home

LINES_MAX = 300  # of one message in one window
WINDOW_SECONDS = 60
TEXT_CHARACTERS_MAX = 2000
FILE_BYTES_MAX = 16 * 2**20
FILES_KEPT = 3  # beside the one that is written
PASSWORD = re.compile(r"(?<=://)[^/\s]+@")
PLAIN_WORD = re.compile(r"[\w.:/+%-]+", re.ASCII)

# A program that uses opentab as a library decides itself what becomes of our lines.
logging.getLogger("opentab").addHandler(logging.NullHandler())


def set_up(home: Home, process: str) -> None:
    """Send what this process logs to a file of its own; of other libraries, warnings and errors.

    A program that has set up logging itself keeps its own.
    """
    root = logging.getLogger()
    if not root.handlers:
        is_json, shown = home["logs.format"] == "json", home.ledger.without_secrets
        root.addHandler(LogFile(home.logs_path / f"{process}.log", is_json=is_json, without_secrets=shown))
        logging.getLogger("opentab").setLevel(home["logs.level"].upper())


def fields(**values: object) -> dict[str, dict[str, object]]:
    """The `extra` of a log call: what is None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


class LogFile(logging.Handler):
    """Appends to a file that several processes may share, and begins a new one where it has become large.

    Of one message it writes so many lines a minute, and then how many it left out. A log that cannot be written stops
    nobody.
    """

    def __init__(self, path: Path, *, is_json: bool, without_secrets: Callable[[str], str] = str) -> None:
        super().__init__()
        self._path = path
        self._is_json = is_json
        self._without_secrets = without_secrets
        self._window = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()  # by logger and message, in this window

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            if record.created // WINDOW_SECONDS != self._window:
                self._tell_left_out()
                self._window = record.created // WINDOW_SECONDS
            kind = record.name, str(record.msg)
            self._counts[kind] += 1
            if self._counts[kind] <= LINES_MAX:
                self._write(self.format(record))

    def close(self) -> None:
        with suppress(Exception):
            self._tell_left_out()
        super().close()

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in it."""
        texts: dict[str, Any] = {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            texts["exception"] = logging.Formatter().formatException(record.exc_info)
        shown = {name: self._shown(value) if isinstance(value, str) else value for name, value in texts.items()}
        at = format_us(round(record.created * 1_000_000))
        if self._is_json:
            facts = {"time": at, "level": record.levelname, "logger": record.name, "process": record.process}
            return _json({**facts, **shown})
        message = shown.pop("message")
        message = message if message.isprintable() else _json(message)
        rest = "".join(f" {name}={_word(value)}" for name, value in shown.items())
        return f"{at} {record.levelname} {record.name}[{record.process}] {message}{rest}"

    def _shown(self, text: str) -> str:
        return PASSWORD.sub("…@", self._without_secrets(text))[:TEXT_CHARACTERS_MAX]

    def _tell_left_out(self) -> None:
        for (name, message), count in self._counts.items():
            if count > LINES_MAX:
                record = logging.LogRecord(name, logging.WARNING, "", 0, "lines left out", None, None)
                record.__dict__.update(fields(of=message, lines=count - LINES_MAX))
                self._write(self.format(record))
        self._counts.clear()

    def _write(self, line: str) -> None:
        self._path.parent.mkdir(exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(file, f"{line}\n".encode(errors="backslashreplace"))
            found = os.fstat(file)
            # Another process may have moved it away while we waited for the lock.
            if found.st_size > FILE_BYTES_MAX and os.path.samestat(found, self._path.stat()):
                for number in range(FILES_KEPT, 0, -1):
                    older = self._path.with_suffix(f".log.{number - 1}") if number > 1 else self._path
                    with suppress(FileNotFoundError):
                        older.rename(self._path.with_suffix(f".log.{number}"))
        finally:
            os.close(file)


class TroubleLog:
    """Logs when something gets in the way of a part, and when it is over, but not each try in between."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def see(self, part: str, trouble: object | None) -> None:
        """Take note of how a part is doing now; None: it is well."""
        with self._lock:
            if trouble is not None and part not in self._since:
                self._since[part] = time.monotonic()
                self._logger.warning("trouble begins", extra=fields(part=part, reason=str(trouble)))
            elif trouble is None and part in self._since:
                seconds = round(time.monotonic() - self._since.pop(part), 1)
                self._logger.info("trouble is over", extra=fields(part=part, seconds=seconds))


def _word(value: object) -> str:
    return value if isinstance(value, str) and PLAIN_WORD.fullmatch(value) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)
