"""Files and streams of JSON lines into the log, byte for byte."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

from opentab.core.errors import InputError
from opentab.log import Appends
from opentab.log.directory import SEGMENT_BYTES_MAX, SEGMENT_LINES_MAX

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
STREAM_WAIT_SECONDS = 0.25


def ingest(
    chunks: Iterator[bytes | None],
    producer: Appends,
    *,
    lines_max: int,
    progress: Callable[[int, int], None] = lambda lines, bytes_: None,
) -> int:
    """Append everything to the log and return the number of lines, once all of it is durable.

    A chunk of None means that the source is quiet: whole lines are written without waiting for more.
    """
    lines_max = min(lines_max, SEGMENT_LINES_MAX)
    buffer = bytearray()
    total = 0
    for chunk in chunks:
        if chunk is not None:
            buffer += chunk
            if len(buffer) < SEGMENT_BYTES_MAX and buffer.count(b"\n") < lines_max:
                continue
        while body := _cut(buffer, lines_max, flush=chunk is None):
            producer.append(body)
            total += body.count(b"\n")
            progress(total, len(body))
        if len(buffer) > LINE_BYTES_MAX:
            raise InputError(
                f"line {total + 1} is longer than {LINE_BYTES_MAX // 2**20} MiB",
                hint="is this a file of JSON lines? what came before it is in the log",
            )
    if buffer and not buffer.endswith(b"\n"):
        buffer += b"\n"
    while body := _cut(buffer, lines_max, flush=True):
        producer.append(body)
        total += body.count(b"\n")
        progress(total, len(body))
    return total


def file_chunks(file: BinaryIO) -> Iterator[bytes]:
    """A file, piece by piece."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def stream_chunks(file: BinaryIO) -> Iterator[bytes | None]:
    """A pipe or a terminal, piece by piece, with None where nothing came for a moment."""
    handle = file.fileno()
    while True:
        ready, _, _ = select.select([handle], [], [], STREAM_WAIT_SECONDS)
        if not ready:
            yield None
            continue
        chunk = os.read(handle, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _cut(buffer: bytearray, lines_max: int, *, flush: bool) -> bytes:
    """Take the lines of one segment off the buffer; nothing if there are not enough yet."""
    end = 0
    lines = 0
    while lines < lines_max:
        newline = buffer.find(b"\n", end)
        if newline < 0 or (lines > 0 and newline >= SEGMENT_BYTES_MAX):
            break
        end, lines = newline + 1, lines + 1
    full = lines == lines_max or len(buffer) >= SEGMENT_BYTES_MAX
    if end == 0 or not (full or flush):
        return b""
    body = bytes(buffer[:end])
    del buffer[:end]
    return body
