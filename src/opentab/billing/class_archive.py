"""Spark's classes, loaded once and kept in a file that later Java processes map: they start in half the time.

The file belongs to one Java and one Spark, so it lies in the environment that holds them. Without it
everything works the same, only later. `make setup` writes it: python -m opentab.billing.class_archive
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from opentab.runtime.java import Java, find_java
from opentab.runtime.spark_inside import pyspark_version

BUILD_SECONDS_MAX = 180
# Two months, so that one of them is closed.
EVENTS = b"".join(
    b'{"time":"2026-%02d-15T12:00:00Z","customer":"emma","type":"CALL","amount":"1.00"}\n' % month for month in (1, 2)
)


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and our Spark lies, if it was made."""
    return Path(sys.prefix) / "lib" / "opentab" / f"spark-{pyspark_version()}-java-{java.version}.jsa"


def jvm_option(java: Java) -> str:
    """What tells Java to use the archive; empty where there is none."""
    path = archive_path(java)
    return f"-XX:SharedArchiveFile={path}" if path.exists() else ""


def build() -> Path | None:
    """Make the archive from a small run, if there is none. Returns its path if it was made."""
    path = archive_path(find_java())
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    command = [sys.executable, "-m", "opentab.cli"]
    with tempfile.TemporaryDirectory(prefix="opentab-archive-") as home:
        option = f'[spark]\ndriver.extraJavaOptions = "-XX:ArchiveClassesAtExit={aside}"\n'
        (Path(home) / "opentab.toml").write_text(option, encoding="utf-8")
        subprocess.run([*command, "ingest", "--home", home], input=EVENTS, check=True, capture_output=True)
        run = subprocess.Popen(
            [*command, "run", "--once", "--home", home], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        javas: set[psutil.Process] = set()
        while run.poll() is None:
            javas |= {p for p in psutil.Process(run.pid).children(recursive=True) if _is_java(p)}
            psutil.wait_procs(javas, timeout=0.5)
        # Java writes the archive when it ends, and that is later than Python does.
        psutil.wait_procs(javas, timeout=BUILD_SECONDS_MAX)
    if not aside.exists():
        return None
    aside.rename(path)
    return path


def _is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    build()
