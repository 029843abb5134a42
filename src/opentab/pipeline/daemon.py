"""Spark's Python daemon, with all that a batch needs loaded before it forks its workers."""

from __future__ import annotations

import zipimport

import opentab.pipeline.task  # noqa: F401  what the workers inherit
from opentab.memory import keep_memory, keep_modules

# Before each task a worker forgets what Python knows of its paths. Of a zip it would read the whole directory again,
# and every jar among them is one: a sixth of a second a task and more, for files that never change.
zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]

if __name__ == "__main__":
    from pyspark.daemon import manager

    keep_memory()
    keep_modules()
    manager()  # type: ignore[no-untyped-call]
