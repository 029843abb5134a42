"""The Spark session of a home, with Spark's own noise in a file instead of on the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opentab.config import Home
from opentab.errors import MachineError
from opentab.java import find_java
from opentab.pipeline.class_archive import jvm_option
from opentab.pipeline.form import BLOCK_LINES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
# It warns of a group's name before every batch; we join no group.
logger.kafka.name = org.apache.spark.sql.kafka010.KafkaSourceProvider
logger.kafka.level = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""

# The work is done in Python: a JVM that compiles little starts sooner and leaves it the cores.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
# A topic is read by Java, though: there it pays to compile well, and to have room for what lives shortly. But Spark's
# code is deeply nested, and to take all of it into each method keeps half a core busy for the first half minute.
KAFKA_JVM_OPTIONS = (
    "-XX:+UseSerialGC -Xmn768m -Xss4m"
    " -XX:MaxInlineLevel=9 -XX:FreqInlineSize=100 -XX:InlineSmallCode=1000 -XX:CompileThresholdScaling=2"
)
KAFKA_SETTINGS = {
    "spark.driver.memory": "2g",
    # The older of Spark's two readers of topics makes each message a Java row and takes it apart again.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # A block of lines is read at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BLOCK_LINES),
}

SETTINGS = {
    "spark.app.name": "opentab",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Many small files make few tasks, not one task each.
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.adaptive.enabled": "false",
    # A closing's tasks read the ledger's own files, whose pages have checksums.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A closing's tasks and the stream's take turns.
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "opentab.pipeline.daemon",
}


def open_session(home: Home) -> SparkSession:
    """Start Spark as the home's settings say."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if home.tasks_are_here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **SETTINGS,
        **(KAFKA_SETTINGS if home.kafka is not None else {}),
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if home.tasks_are_here else {}),
        "spark.sql.warehouse.dir": str(home.checkpoint_path / "warehouse"),
        **home.spark,
    }
    if home.kafka is not None:
        packages = [settings.get("spark.jars.packages", ""), home["kafka.connector"]]
        settings["spark.jars.packages"] = ",".join(name for name in packages if name)
    log4j = _write_log4j(home.logs_path)
    _send_logs_to(home.logs_path / "pipeline.log")
    java_options = JVM_OPTIONS if home.kafka is None else KAFKA_JVM_OPTIONS
    extra = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = (
        f"{java_options} {jvm_option(java)} -Dlog4j2.configurationFile={log4j.as_uri()} {extra}".strip()
    )
    with quiet(home.logs_path / "spark.out"):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        _silence_accumulators()
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except (PySparkException, OSError) as error:
            raise MachineError(
                f"Spark did not start: {str(error).splitlines()[0]}",
                hint=f"see {home.logs_path / 'spark.out'}",
            ) from error


def warm_workers(spark: SparkSession, *, tables: bool) -> None:
    """Start Spark's Python workers, those for tables or those for RDDs, and let them load what a batch needs."""
    from opentab.pipeline.task import REPORT_SCHEMA, warm_up

    cores = spark.sparkContext.defaultParallelism
    with suppress(Exception):  # if Spark is in trouble, the stream says so
        if tables:
            spark.range(0, cores, 1, cores).mapInArrow(warm_up, REPORT_SCHEMA).collect()
        else:
            spark.sparkContext.parallelize(range(cores), cores).mapPartitions(warm_up).collect()


@contextmanager
def quiet(file: Path) -> Iterator[None]:
    """Send what this process and the ones it starts write to its outputs into a file, for a while."""
    sys.stdout.flush()
    sys.stderr.flush()
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(1), os.dup(2)]
    try:
        with file.open("ab") as target:
            os.dup2(target.fileno(), 1)
            os.dup2(target.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, handle in enumerate(saved, start=1):
            os.dup2(handle, number)
            os.close(handle)


def _send_logs_to(file: Path) -> None:
    """pyspark and py4j log tracebacks; we raise what they were about ourselves."""
    logging.basicConfig(filename=file, encoding="utf-8", format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _silence_accumulators() -> None:
    """A Java process that dies breaks a socket of pyspark's, which would print a traceback of its own."""
    from pyspark.accumulators import AccumulatorServer

    AccumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def _write_log4j(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "log4j2.properties"
    path.write_text(LOG4J.format(file=directory / "spark.log"), encoding="utf-8")
    return path
