"""What we take for granted of Spark's inside, and the versions that have it.

Spark's documents promise nothing of this. What they promise is used where it is needed; the rest stands here, so that a
new version of Spark is one module to look through. `check_spark` is called before Spark starts.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from zipfile import ZipFile

from opentab.core import errors
from opentab.core.errors import MachineError, OpentabError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST, NEWEST = (4, 0), (4, 3)
INSTALL_HINT = 'install one of them: pip install "pyspark>=4.0,<4.4"'

# As a file, or as Maven names it.
KAFKA_JAR = re.compile(r"spark-sql-kafka-0-10_2\.\d+[-:](\d+\.\d+\S*?)(?:\.jar)?$")

Main = Callable[[BinaryIO, BinaryIO], None]

# Error texts name Spark's own class where Python code of ours failed in a task.
PYTHON_ERROR = "org.apache.spark.api.python.PythonException"

# The form of the checkpoint's files that `batch_end` reads. From 4.2 on Spark can write another one.
OFFSETS_VERSION = "v1"
INSIDE_SETTINGS = {
    "spark.sql.streaming.offsetLog.formatVersion": OFFSETS_VERSION.removeprefix("v"),
    "spark.python.daemon.module": "opentab.billing.daemon",
}


def check_spark() -> str:
    """Raise unless the Spark of this machine is one that we know; returns its version."""
    version = pyspark_version()
    check_version(version)
    for module, name in (("pyspark.worker", "main"), ("pyspark.daemon", "manager")):
        try:
            has_it = callable(getattr(importlib.import_module(module), name, None))
        except ImportError:
            has_it = False
        if not has_it:
            raise lacks(version, f"{module}.{name}")
    check_jars(jars_path(), version)
    return version


def pyspark_version() -> str:
    """The version of the pyspark that is imported; on a cluster it may come without a package."""
    try:
        from pyspark import __version__
    except ImportError as error:
        raise MachineError("pyspark is not installed", hint="run make setup") from error
    return __version__


def check_version(version: str) -> None:
    if not OLDEST <= minor_of(version) <= NEWEST:
        raise MachineError(
            f"pyspark {version} is installed, and opentab runs on {_named(OLDEST)} to {_named(NEWEST)}",
            hint=INSTALL_HINT,
        )


def check_jars(jars: Path, version: str) -> None:
    """Raise unless Spark's jars are of pyspark's version and have the classes that we name."""
    found = sorted(jars.glob("spark-sql_2.*.jar"))
    if not found:
        raise MachineError(f"there is no Spark in {jars}", hint="unset SPARK_HOME, or install pyspark anew")
    jar = found[0]
    of_jar = jar.stem.split("-", 2)[2]  # spark-sql_2.13-4.0.5
    if minor_of(of_jar) != minor_of(version):
        raise MachineError(
            f"Spark {of_jar} is in {jars.parent}, and pyspark {version} is installed",
            hint=f"unset SPARK_HOME, or install pyspark {of_jar}",
        )
    name = checkpoint_files(version)
    with ZipFile(jar) as classes:
        if f"{name.replace('.', '/')}.class" not in classes.namelist():
            raise lacks(version, name)


def check_kafka_source(connector: str, settings: Mapping[str, str], version: str) -> None:
    """Raise where Spark's Kafka source is missing or for another Spark: it would fail with the name of a class.

    It is fetched as Maven names it, or it is among the jars that Spark is given. What stands in a class path of the
    operator's own is not looked at.
    """
    if connector:
        check_connector(connector, version)
    elif not any(f"spark.{part}.extraClassPath" in settings for part in ("driver", "executor")):
        _check_kafka_jar(settings, version)


def check_connector(connector: str, version: str) -> None:
    group, _, rest = connector.partition(":")
    artifact, _, of_connector = rest.partition(":")
    is_sparks = group == "org.apache.spark" and artifact.startswith("spark-sql-kafka")
    if is_sparks and minor_of(of_connector) != minor_of(version):
        raise MachineError(
            f"kafka.connector is for Spark {of_connector}, and pyspark {version} is installed",
            hint=f'set connector = "{group}:{artifact}:{version}" under [kafka]',
        )


def _check_kafka_jar(settings: Mapping[str, str], version: str) -> None:
    given = [name for key in ("jars", "jars.packages") for name in settings.get(f"spark.{key}", "").split(",")]
    found = [KAFKA_JAR.search(name) for name in [*given, *(jar.name for jar in jars_path().glob("*.jar"))]]
    of_jar = next((match[1] for match in found if match), None)
    if of_jar is None:
        raise MachineError(
            "kafka.connector is empty, and none of Spark's jars is its Kafka source",
            hint="name its jars in jars under [spark], or take the line with connector out",
        )
    if minor_of(of_jar) != minor_of(version):
        raise MachineError(
            f"the jar of Spark's Kafka source is for Spark {of_jar}, and pyspark {version} is installed",
            hint=f"take the one for Spark {version}",
        )


def lacks(version: str, what: str) -> MachineError:
    return MachineError(
        f"pyspark {version} has no {what}, which opentab needs",
        hint=f"install another version from {_named(OLDEST)} to {_named(NEWEST)}",
    )


def minor_of(version: str) -> tuple[int, int]:
    """4.0 of 4.0.5."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def jars_path() -> Path:
    """Where the jars of Spark lie that pyspark will start."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


def checkpoint_files(version: str) -> str:
    """The class that writes a streaming query's checkpoint.

    A query writes two small files a batch. With Hadoop's raw file system behind it, which forks for no permissions and
    writes no checksums, this class takes 10 ms for both. Spark's own choice takes 97 ms, and 40 ms with the raw one.
    """
    package = "org.apache.spark.sql.execution.streaming"
    moved = ".checkpointing" if minor_of(version) >= (4, 1) else ""
    return f"{package}{moved}.FileSystemBasedCheckpointFileManager"


def batch_end(checkpoint: Path, number: int) -> str:
    """The offsets up to which one of a query's batches reaches: Spark writes them down before it runs the batch.

    The file has its version, a line about the batch, and a line for each source; we have one source. Raises OSError
    where there is no such file.
    """
    lines = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    if len(lines) != 3 or lines[0] != OFFSETS_VERSION:
        raise OpentabError(
            f"Spark wrote a batch's offsets in a form that opentab does not know: {len(lines)} lines, "
            f"and the first is {''.join(lines[:1])[:20]!r}"
        )
    return lines[2]


def told_by_task(error: Exception) -> OpentabError | None:
    """The error of our own that a task raised: Spark passes on its text. None: it was another one."""
    for line in map(str.strip, str(error).splitlines()):
        name, _, fact = line.partition(": ")
        kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None)
        if name.startswith(f"{errors.__name__}.") and isinstance(kind, type) and issubclass(kind, OpentabError):
            return kind(fact)
    return None


def reason_of(error: Exception) -> str:
    """The line of a Python worker's traceback, or of Java's, that names the error."""
    text = str(error)
    for java in ("=== Streaming Query ===", "JVM stacktrace", "Driver stacktrace", "\n\tat "):
        text = text.split(java, maxsplit=1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:300]


def is_stopped(spark: SparkSession) -> bool:
    """Whether Spark has given up, for example because its cluster is gone."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError):
        return True


def silence_accumulators(spark: SparkSession) -> None:
    """A Java process that dies breaks a socket of pyspark's, which would print a traceback of its own."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def wrap_worker(wrap: Callable[[Main], Main]) -> None:
    """Let `wrap` stand around what a Python worker does with a task.

    To be called before pyspark.daemon is imported: up to 4.1 it takes the function when it is imported, later after
    each fork.
    """
    from pyspark import worker

    worker.main = wrap(worker.main)


def _named(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
