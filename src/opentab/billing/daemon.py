"""Spark's Python daemon, with all that a batch needs loaded before it forks its workers."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import zipimport
from contextlib import suppress
from typing import BinaryIO

from opentab.runtime.memory import keep_memory, keep_modules
from opentab.runtime.spark_inside import Main, wrap_worker

# Before each task a worker forgets what Python knows of its paths. Of a zip it would read the whole directory again,
# and every jar among them is one: a sixth of a second a task and more, for files that never change.
zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]


def acknowledging(run_task: Main) -> Main:
    """Do what Spark asks for, and acknowledge at once what it sends.

    Spark sends a task in two small pieces, and its kernel holds the second one back until the first is acknowledged;
    ours would wait 40 ms for an answer that it could send along.
    """

    def acknowledge_and_run(infile: BinaryIO, outfile: BinaryIO) -> None:
        # Where there is no such thing, there is a wait, and no harm.
        with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(infile.fileno())) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        run_task(infile, outfile)

    return acknowledge_and_run


if __name__ == "__main__":
    if "pyspark.worker" in sys.argv:  # and not a process of Spark's that only plans a data source
        importlib.import_module("opentab.billing.task")  # the workers inherit it
    wrap_worker(acknowledging)
    from pyspark import daemon

    keep_memory()
    keep_modules()
    daemon.manager()  # type: ignore[no-untyped-call]
