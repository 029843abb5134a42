"""Java programs of others, fetched from Maven Central once a machine by Spark's own Ivy. No Maven program is needed.

They stay in a cache outside of the clone: `$XDG_CACHE_HOME/opentab/jars`, or `~/.cache/opentab/jars`. Spark keeps its
connectors in a place of its own (`spark.jars.ivy`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentab.core.errors import MachineError
from opentab.runtime.disk import sync
from opentab.runtime.java import find_java
from opentab.runtime.published import CONNECTOR, check_published

# Without the last one the broker dies without a word.
KAFKA = ("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36")
HASHES = Path(__file__).with_name("jars.sha256")  # of every jar that is fetched, in the form of sha256sum
FETCH_SECONDS_MAX = 600

IVY = """\
<ivy-module version="2.0">
  <info organisation="opentab" module="tools"/>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'


def kafka_jars() -> Path:
    """A directory with all that Kafka's broker is made of."""
    return fetch_jars("kafka-4.1.0", KAFKA)


def connector_jars() -> list[Path]:
    """What Spark lacks to read Kafka, as files for its setting `spark.jars`."""
    spark = {path.name.rpartition("-")[0] for path in (spark_home() / "jars").glob("*.jar")}
    found = fetch_jars("connector-4.0.0", (CONNECTOR,))
    return sorted(path for path in found.glob("*.jar") if path.name.rpartition("-")[0] not in spark)


def fetch_jars(name: str, modules: tuple[str, ...]) -> Path:
    """A directory with the jars of these modules and of all that they need: all of them, or none."""
    jars = _cache() / name
    if jars.is_dir():
        return jars
    with alone(_cache() / f".{name}.lock"):
        if not jars.is_dir():  # another process was quicker
            _fetch(jars, modules)
    return jars


def fetch_connector() -> None:
    """Let Spark fetch its Kafka connector to where it looks for it, so that later starts need no network."""
    with alone(_cache() / ".connector.lock"), tempfile.TemporaryDirectory() as aside:
        nothing = Path(aside, "nothing.py")
        nothing.touch()
        submit = spark_home() / "bin" / "spark-submit"
        environment = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
        _run([str(submit), "--master", "local[1]", "--packages", CONNECTOR, str(nothing)], CONNECTOR, environment)


def spark_home() -> Path:
    """Where pyspark keeps Spark."""
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MachineError("pyspark is not installed", hint="run make setup")
    return Path(spec.origin).parent


def java_program() -> str:
    return str(find_java().home / "bin" / "java")


def cache_path() -> Path:
    """Where programs of others stay, for all clones on this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "opentab"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time do what follows; `path` is a file that is nobody's but for this."""
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    cache = cache_path() / "jars"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _fetch(jars: Path, modules: tuple[str, ...]) -> None:
    """Fetch aside and rename: a directory that has the name is whole."""
    aside = Path(tempfile.mkdtemp(prefix=f".{jars.name}-", dir=jars.parent))
    try:
        description = aside / "ivy.xml"
        wanted = "".join(DEPENDENCY.format(*module.split(":")) for module in modules)
        description.write_text(IVY.format(dependencies=wanted), encoding="utf-8")
        ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
        found = aside / "jars"
        pattern = f"{found}/[artifact]-[revision].[ext]"
        places = ["-cache", str(aside / "cache"), "-retrieve", pattern]
        _run(
            [java_program(), "-jar", str(ivy), "-ivy", str(description), *places, "-types", "jar", "bundle"], modules[0]
        )
        check_published(found.iterdir(), HASHES)
        for path in (*found.iterdir(), found):
            sync(path)
        found.rename(jars)
        sync(jars.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _run(command: list[str], what: str, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(what, f"it took more than {FETCH_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise _not_fetched(what, _reason(done.stdout + done.stderr))


def _reason(output: str) -> str:
    """The line that says why: Ivy's own words, else Java's first exception."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for word in ("unresolved dependency", ": not found", "Exception"):
        for line in lines:
            if word in line:
                return line
    return next((line for line in reversed(lines) if line), "without a word")


def _not_fetched(what: str, why: str) -> MachineError:
    return MachineError(
        f"{what} could not be fetched from Maven Central: {why}",
        hint="let this machine reach https://repo1.maven.org for once (scripts/setup tests), then it is kept",
        retry_helps=True,
    )


def _main() -> None:
    """Fetch all that the tests and `opentab chaos` need."""
    try:
        kafka_jars()
        connector_jars()
        fetch_connector()
    except MachineError as error:
        sys.exit(f"opentab: {error}")


if __name__ == "__main__":
    _main()
