"""The Spark session of a home, with Spark's own noise in a file instead of on the terminal."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError

from opentab.billing.class_archive import jvm_option
from opentab.core.errors import MachineError
from opentab.runtime import logs
from opentab.runtime.config import Home
from opentab.runtime.java import find_java
from opentab.runtime.published import CONNECTOR, CONNECTOR_HASHES, check_published
from opentab.runtime.spark_inside import (
    INSIDE_SETTINGS,
    check_kafka_source,
    check_spark,
    checkpoint_files,
    pyspark_version,
    silence_accumulators,
)
from opentab.wire.template import BLOCK_LINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""

# Room for what lives shortly, and Java's full compiler: without it a closing takes twice as long. But Spark's code is
# deeply nested, and to take all of it into each method keeps half a core busy for the first half minute.
JVM_OPTIONS = (
    "-XX:+UseSerialGC -Xmn768m -Xss4m"
    " -XX:MaxInlineLevel=9 -XX:FreqInlineSize=100 -XX:InlineSmallCode=1000 -XX:CompileThresholdScaling=2"
)
WARM_SECONDS_MAX = 10
ROWS_SETTINGS = {
    # A block of lines is read at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BLOCK_LINES),
}

# Spark's UI listens where SPARK_LOCAL_IP says, so on this machine it is for this machine alone. On a cluster it would
# be open to the whole network.
LOOPBACK_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver listens on a port, and any user of this machine may call it. Spark makes the secret itself.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
CLUSTER_SETTINGS = {"spark.ui.enabled": "false"}
SETTINGS = {
    "spark.app.name": "opentab",
    "spark.ui.showConsoleProgress": "false",
    # Each batch is a job. Spark keeps all it knows of the last ones in the driver's memory.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "400",
    "spark.ui.retainedTasks": "10000",
    "spark.sql.ui.retainedExecutions": "100",
    "spark.ui.killEnabled": "false",  # a page elsewhere in the operator's browser could do it
    "spark.port.maxRetries": "100",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    # For whoever reads the ledger's files with Spark's own reader; closings read them with the ledger's.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A closing's tasks and the stream's take turns.
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    # For a query's checkpoint, which is thrown away anyway: no forks for permissions, no files for checksums.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.stopTimeout": "30s",
    **INSIDE_SETTINGS,
}


def open_session(home: Home) -> SparkSession:
    """Start Spark as the home's settings say."""
    java = find_java()
    version = check_spark()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = python_of_tasks(home)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if home.tasks_are_here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = settings_of(home, reads_rows=home.kafka is not None)
    if home.kafka is not None:
        check_kafka_source(home["kafka.connector"], settings, version)
        packages = [settings.get("spark.jars.packages", ""), home["kafka.connector"]]
        settings |= {"spark.jars.packages": ",".join(filter(None, packages))} if any(packages) else {}
    log4j = _write_log4j(home.logs_path)
    logs.set_up(home, "pipeline")
    extra = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = (
        f"{JVM_OPTIONS} {jvm_option(java)} -Dlog4j2.configurationFile={log4j.as_uri()} {extra}".strip()
    )
    with quiet(home.logs_path / "spark.out"):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        handler = signal.getsignal(signal.SIGINT)
        try:
            session = builder.getOrCreate()
        except (PySparkException, OSError) as error:
            raise MachineError(
                f"Spark did not start: {str(error).splitlines()[0]}",
                hint=f"see {home.logs_path / 'spark.out'}",
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)  # Spark has put its own in the place of ours
    if home.kafka is not None and home["kafka.connector"] == CONNECTOR:
        _check_connector(session, home)
    silence_accumulators(session)
    return session


def _check_connector(session: SparkSession, home: Home) -> None:
    """Raise unless the jars that Spark has just fetched are what was published. Nothing of them has run yet."""
    listed = session.sparkContext.getConf().get("spark.jars") or ""
    jars = [Path(unquote(urlsplit(name).path)) for name in listed.split(",") if name]
    if "spark.jars" in home.spark or "spark.jars.packages" in home.spark:  # jars of the operator's own are there, too
        names = CONNECTOR_HASHES.read_text(encoding="ascii")
        jars = [jar for jar in jars if jar.name.partition("_")[2] in names]
    try:
        check_published(jars, CONNECTOR_HASHES)
    except MachineError:
        session.stop()
        raise


def python_of_tasks(home: Home) -> str:
    """The interpreter of Spark's workers. PySpark itself looks at the variable alone, so the setting becomes one."""
    return home.spark.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def settings_of(home: Home, *, reads_rows: bool) -> dict[str, str]:
    """What Spark is told. Sources whose rows are events are read in blocks of lines; segments are blocks already."""
    return {
        **SETTINGS,
        "spark.sql.streaming.checkpointFileManagerClass": checkpoint_files(pyspark_version()),
        **(ROWS_SETTINGS if reads_rows else {}),
        **(LOOPBACK_SETTINGS if home.tasks_are_here else CLUSTER_SETTINGS),
        "spark.sql.warehouse.dir": str(home.checkpoint_path / "warehouse"),
        **home.spark,
    }


def warm_workers(spark: SparkSession, tag: str) -> None:
    """Start Spark's Python workers, and let them load what a batch needs."""
    from opentab.billing.task import RESULT_SCHEMA, warm_up

    cores = spark.sparkContext.defaultParallelism
    with suppress(Exception):  # if Spark is in trouble, the stream says so
        spark.sparkContext.addJobTag(tag)
        spark.sparkContext.setJobDescription("warm-up")
        spark.range(0, cores, 1, cores).mapInArrow(warm_up, RESULT_SCHEMA).collect()


def warm_stream(spark: SparkSession, checkpoint: Path) -> None:
    """Start Spark's Python workers, and let all load what a query needs: one batch of one that bills nothing."""
    from opentab.billing.task import RESULT_SCHEMA, warm_up

    done, directory = threading.Event(), checkpoint / "warm-up"

    def look_at(batch: DataFrame, _: int) -> None:
        batch.mapInArrow(warm_up, RESULT_SCHEMA).toArrow()
        done.set()

    with suppress(Exception):  # if Spark is in trouble, the stream says so
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        query = rows.writeStream.option("checkpointLocation", f"file:{directory}").foreachBatch(look_at).start()
        done.wait(WARM_SECONDS_MAX)
        query.stop()
    shutil.rmtree(directory, ignore_errors=True)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel all jobs that have a tag. Whatever has begun to commit is not Spark's, and ends."""
    with suppress(Py4JError, ConnectionError):  # of a Java that is gone: that ends them, too
        spark.sparkContext.cancelJobsWithTag(tag)


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


def _write_log4j(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "log4j2.properties"
    path.write_text(LOG4J.format(file=directory / "spark.log"), encoding="utf-8")
    return path
