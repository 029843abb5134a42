"""Spark's Python daemon, with all that a batch needs loaded before it forks its workers."""

from __future__ import annotations

import opentab.pipeline.task  # noqa: F401  what the workers inherit

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
