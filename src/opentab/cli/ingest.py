"""`opentab ingest`: files and streams of JSON lines into the log, with a word at once about what will not be billed."""

from __future__ import annotations

import gzip
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from opentab.cli.base import at_home, at_log, commands, progress_bar
from opentab.core.errors import InputError, OpentabError
from opentab.runtime import terminal
from opentab.runtime.config import Home
from opentab.runtime.permissions import make_private

if TYPE_CHECKING:
    from opentab.log import Appends

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
EXAMPLE_CHARACTERS_MAX = 60


@commands.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--partition", metavar="NAME", help='of the log ["default"; on Kafka the customer decides]')
@at_home
@at_log
def ingest(home: Home, files: tuple[Path, ...], partition: str | None) -> None:
    """Put JSON lines into the log: FILES, or standard input. Returns once they are durable.

    Files and streams that gzip or zstd compressed are taken as such.
    """
    from opentab.billing.log_check import open_checked_producer
    from opentab.log.ingest import file_chunks
    from opentab.log.ingest import ingest as append

    for file in files:
        if str(file) != "-" and not os.access(file, os.R_OK):
            raise InputError(f"{file} cannot be read", hint="nothing was ingested")
        if file.is_dir():
            raise InputError(f"{file} is a directory", hint="name the files in it; nothing was ingested")
    make_private(home.path)
    producer = _Judged(open_checked_producer(home, partition), home)
    lines_max = home["pipeline.batch_events_max"]
    try:
        for file in files or (Path("-"),):
            if str(file) == "-":
                append(
                    _stream(cast("BufferedReader", sys.stdin.buffer)), cast("Appends", producer), lines_max=lines_max
                )
                continue
            with file.open("rb") as handle, progress_bar(file.stat().st_size, str(file)) as advance:
                chunks = file_chunks(_unpacked(handle) or handle)
                append(chunks, cast("Appends", producer), lines_max=lines_max, progress=lambda _, size: advance(size))
    except Damaged as error:
        raise InputError(f"{file} is damaged: {error}", hint=f"{producer.written()}; nothing after them") from error
    except OpentabError as error:
        if producer.unsure:
            terminal.complain(
                f"{producer.written()}. Of the next {terminal.plural(producer.unsure, 'line')} some may be; nothing "
                "after them was sent. Events with an id may be sent again without harm"
            )
        raise error
    producer.warn()
    sys.stderr.write(f"{producer.written()}, partition {producer.partition}\n")


class _Judged:
    """A producer that remembers which of its lines the pipeline would reject."""

    def __init__(self, producer: Appends, home: Home) -> None:
        self.partition = producer.partition
        self.unsure = 0  # lines of an append that failed
        self._producer = producer
        self._home = home
        self._total = 0
        self._counts: Counter[str] = Counter()  # by reason
        self._examples: dict[str, str] = {}

    def append(self, body: bytes) -> int:
        lines = body.count(b"\n")
        self.unsure = lines
        number = self._producer.append(body)
        self.unsure = 0
        self._look(body)
        self._total += lines
        return number

    def written(self) -> str:
        return f"{terminal.plural(self._total, 'line is', 'lines are')} in the log"

    def warn(self) -> None:
        """Say what will be rejected and why, with an example of each."""
        for reason, count in sorted(self._counts.items()):
            terminal.complain(f"{terminal.plural(count, 'line')} will be rejected: {reason}. {self._examples[reason]}")
        if self._counts:
            terminal.complain(
                "they are kept in the log; after the next run, opentab rejections --export gives them back"
            )

    def _look(self, body: bytes) -> None:
        import numpy as np

        from opentab.wire.byte_columns import Texts
        from opentab.wire.decode import decode

        lines = Texts.of_lines(body)
        arrived_us = np.full(len(lines), time.time_ns() // 1000, np.int64)
        decoded = decode(lines, arrived_us=arrived_us, rules=self._home.rules, calendar=self._home.calendar)
        for at, refusal in decoded.refusals:
            reason = refusal.reason.value
            if reason not in self._examples:
                shown = terminal.printable(lines[at])
                if len(shown) > EXAMPLE_CHARACTERS_MAX:
                    shown = shown[:EXAMPLE_CHARACTERS_MAX] + "…"
                detail = f" ({terminal.printable(refusal.detail)})" if refusal.detail else ""
                self._examples[reason] = f"The first is line {self._total + at + 1}{detail}: {shown}"
            self._counts[reason] += 1


class Damaged(Exception):
    """A compressed file cannot be unpacked to its end."""


class _Unpacked:
    """What a compressed file or stream says."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except (EOFError, OSError, zlib.error) as error:
            raise Damaged(str(error)) from error


def _unpacked(handle: BufferedReader) -> BinaryIO | None:
    """What it says, where it is compressed: its first bytes tell, and stay to be read."""
    head = handle.peek(len(ZSTD))
    if head.startswith(GZIP):
        return cast("BinaryIO", _Unpacked(gzip.open(handle)))
    if head.startswith(ZSTD):
        import pyarrow as pa

        return cast("BinaryIO", _Unpacked(pa.CompressedInputStream(pa.PythonFile(handle, "r"), "zstd")))
    return None


def _stream(handle: BinaryIO) -> Iterator[bytes | None]:
    """Standard input, piece by piece, unpacked where it is compressed."""
    from opentab.log.ingest import file_chunks, stream_chunks

    assert isinstance(handle, BufferedReader)
    unpacked = _unpacked(handle)
    if unpacked is not None:
        return file_chunks(unpacked)
    # What was read to look at comes first: stream_chunks reads past Python's buffer.
    return chain([head] if (head := handle.read1(len(handle.peek()))) else [], stream_chunks(handle))
