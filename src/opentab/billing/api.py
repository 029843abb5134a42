"""`opentab.run`: the pipeline as a function, for a notebook or a Spark program of your own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opentab.billing.run import Pipeline, Progress
from opentab.billing.session import settings_of
from opentab.billing.source import Source
from opentab.runtime.config import Home, load
from opentab.runtime.permissions import make_private
from opentab.runtime.spark_inside import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    home: Home | Path | str,
    *,
    spark: SparkSession | None = None,
    source: Source | None = None,
    once: bool = False,
    take_over: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Bill a home's log until it is interrupted, or with `once` all that is in the log now.

    `spark` is a session of yours: it is left as it is, and runs on afterwards. `source` is read instead of the log that
    the home's settings name. `watch` is told of each batch. Returns what was billed; raises OpentabError.
    """
    if not isinstance(home, Home):
        make_private(Path(home))
        home = load(Path(home))
    check_spark()
    session = None if spark is None else own_session(spark, home, source)
    return Pipeline(home, once=once, take_over=take_over, watch=watch, spark=session, source=source).run()


def own_session(spark: SparkSession, home: Home, source: Source | None) -> SparkSession:
    """A session over the same Spark with what a pipeline needs, as far as that can be set while Spark runs."""
    session = spark.newSession()
    for name, value in settings_of(home, reads_rows=home.kafka is not None or source is not None).items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session
