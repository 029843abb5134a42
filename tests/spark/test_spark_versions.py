"""The embedded log's whole way on the pinned Spark and on the newest one, and what is said of a Spark that we do not know."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pyspark
import pyspark.worker
import pytest

from opentab.cli.doctor import examine
from opentab.core.errors import MachineError, OpentabError
from opentab.ledger.journal import Journal
from opentab.runtime.config import Home, load
from opentab.runtime.spark_inside import (
    INSTALL_HINT,
    NEWEST,
    OLDEST,
    batch_end,
    check_connector,
    check_kafka_source,
    check_spark,
    check_version,
    checkpoint_files,
    minor_of,
)
from product import json_lines, opentab

ROOT = Path(__file__).parents[2]
NEWEST_SPARK = ROOT / ".tools" / "newest-spark"
SETTINGS = """\
[billing]
out_of_orderness = "0s"
[pipeline]
batch_events_max = 4
compact_files = 2
"""  # each segment here is a batch


def locked(file: str) -> str:
    """The version of Spark in a lock."""
    match = re.search(r"^pyspark==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    assert match
    return match[1]


def spark_of(lock: str) -> dict[str, str]:
    """The environment in which a command has the Spark of a lock."""
    if lock == "requirements.lock":
        return {}
    assert (NEWEST_SPARK / ".opentab-set-up").exists(), "the newest Spark is missing: scripts/setup tests installs it"
    return {"PYTHONPATH": str(NEWEST_SPARK)}


def line(id: str, customer: str, amount: str, day: str, **more: str) -> str:
    known = {"id": id, "time": f"{day}T12:00:00Z", "customer": customer, "type": "CALL", "amount": amount}
    return json.dumps(known | more)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-newest-spark.lock"])
def test_the_whole_way(tmp_path: Path, lock: str) -> None:
    """Repeats in a segment and across batches, closings, a late event and its revision, compaction, and the audit."""
    spark = spark_of(lock)
    (tmp_path / "opentab.toml").write_text(SETTINGS)
    home = load(tmp_path)

    def ingest(*lines: str) -> None:
        opentab("ingest", home=home, stdin="\n".join(lines))

    assert f"pyspark {locked(lock)}, master" in opentab("doctor", home=home, **spark).stdout
    first = line("1", "ann", "5.00", "2026-01-10")
    ingest(first, first, line("2", "bob", "2.00", "2026-01-20"), "{")
    ingest(first, line("3", "ann", "1.00", "2026-02-02"))
    ingest(line("4", "ann", "2.00", "2026-01-30"), line("2", "bob", "2.00", "2026-01-20"))
    ingest(line("5", "bob", "2.00", "2026-01-20", reverses="2", reason="a mistake", actor="eve"))
    opentab("run", "--once", home=home, **spark)
    assert bills(home) == [
        ("2026-01", "ann", 1, "5.00", "5.00"),
        ("2026-01", "ann", 2, "7.00", "2.00"),
        ("2026-01", "bob", 1, "2.00", "2.00"),
        ("2026-01", "bob", 2, "0.00", "-2.00"),
    ]
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    assert (journal.position, len(journal.entry_files())) == (4, 1), "files were merged"
    (verdict,) = json_lines(opentab("verify", "--format", "json", home=home).stdout)
    assert (verdict["agrees"], verdict["not_yet_billed_segments"]) == (True, 0), verdict


def bills(home: Home) -> list[tuple[object, ...]]:
    rows = json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout)
    return sorted(tuple(row[name] for name in ("period", "customer", "revision", "total", "delta")) for row in rows)


# What is said of a Spark that we do not know


def test_the_versions_that_are_taken() -> None:
    wanted = f"pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert wanted in project["project"]["dependencies"]
    assert project["dependency-groups"]["newest-spark"] == [wanted]
    assert wanted in INSTALL_HINT
    assert minor_of(locked("requirements-newest-spark.lock")) == NEWEST
    cluster = (ROOT / "docs" / "cluster.md").read_text()
    assert f"The tests run on {locked('requirements.lock')}." in cluster
    assert f"{locked('requirements-newest-spark.lock')}, too." in cluster
    assert pyspark.__version__ == locked("requirements.lock")
    for version in ("4.0.0", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev1"):
        check_version(version)
    assert check_spark() == pyspark.__version__


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0", "5.0.0", "unknown"])
def test_another_version(version: str) -> None:
    with pytest.raises(MachineError) as raised:
        check_version(version)
    assert raised.value.fact == f"pyspark {version} is installed, and opentab runs on 4.0 to 4.3"
    assert raised.value.hint == 'install one of them: pip install "pyspark>=4.0,<4.4"'


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))
    with pytest.raises(MachineError, match="pyspark is not installed"):
        check_spark()


def test_a_part_that_is_gone(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.delattr(pyspark.worker, "main")
    with pytest.raises(MachineError) as raised:
        check_spark()
    fact = f"pyspark {pyspark.__version__} has no pyspark.worker.main, which opentab needs"
    assert str(raised.value) == f"{fact} (install another version from 4.0 to 4.3)"
    (spark,) = [finding for finding in examine(home) if finding.name == "Spark"]
    assert (spark.ok, spark.fact, spark.fix) == (False, fact, raised.value.hint)


def test_a_spark_beside_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPARK_HOME decides which Spark pyspark starts."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(
        MachineError, match=r"there is no Spark in .*/jars \(unset SPARK_HOME, or install pyspark anew\)"
    ):
        check_spark()
    (tmp_path / "jars").mkdir()
    other = tmp_path / "jars" / "spark-sql_2.13-4.9.1.jar"
    other.touch()
    fact = f"Spark 4.9.1 is in {tmp_path}, and pyspark {pyspark.__version__} is installed"
    with pytest.raises(MachineError, match=rf"{fact} \(unset SPARK_HOME, or install pyspark 4.9.1\)"):
        check_spark()
    other.unlink()
    with ZipFile(tmp_path / "jars" / f"spark-sql_2.13-{pyspark.__version__}.jar", "w") as jar:
        jar.writestr("org/apache/spark/nothing.class", b"")
    with pytest.raises(
        MachineError, match=r"has no org\.apache\..*FileSystemBasedCheckpointFileManager, which opentab"
    ):
        check_spark()


def test_run_says_it_before_spark_starts(tmp_path: Path) -> None:
    opentab("ingest", home=tmp_path, stdin=line("1", "ann", "5.00", "2026-01-10"))
    said = opentab("run", "--once", home=tmp_path, check=False, SPARK_HOME=str(tmp_path))
    assert said.returncode == MachineError.exit_code
    assert f"there is no Spark in {tmp_path}/jars" in said.stderr
    assert not (tmp_path / "logs" / "spark.out").exists()


@pytest.mark.parametrize("connector", ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "com.example:ours:1.0"])
def test_a_connector_that_fits(connector: str) -> None:
    check_connector(connector, "4.0.5")


def test_a_connector_for_another_spark() -> None:
    with pytest.raises(MachineError) as raised:
        check_connector("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "4.3.0")
    assert raised.value.fact == "kafka.connector is for Spark 4.0.0, and pyspark 4.3.0 is installed"
    assert raised.value.hint == 'set connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0" under [kafka]'


def test_the_default_connector_fits_the_pinned_version(home: Home) -> None:
    check_connector(home["kafka.connector"], locked("requirements.lock"))


def test_a_kafka_source_among_the_jars() -> None:
    name = "spark-sql-kafka-0-10_2.13-{}.jar"
    check_kafka_source("", {"spark.jars": f"/jars/kafka-clients-3.9.0.jar,/jars/{name.format('4.0.0')}"}, "4.0.5")
    check_kafka_source("", {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"}, "4.0.5")
    check_kafka_source("", {"spark.driver.extraClassPath": "/opt/kafka/*"}, "4.0.5")
    with pytest.raises(MachineError, match="none of Spark's jars is its Kafka source"):
        check_kafka_source("", {"spark.jars": "/jars/kafka-clients-3.9.0.jar"}, "4.0.5")
    with pytest.raises(MachineError, match=r"is for Spark 4\.0\.0, and pyspark 4\.3\.0 is installed"):
        check_kafka_source("", {"spark.jars": f"/jars/{name.format('4.0.0')}"}, "4.3.0")


def test_offsets_of_a_form_that_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    file = tmp_path / "offsets" / "7"
    file.write_text('v1\n{"batchWatermarkMs":0}\n{"default":3}')
    assert batch_end(tmp_path, 7) == '{"default":3}'
    for text in ("", "v2\n{}\n0:{}", "v1\n{}", "v1\n{}\n{}\n{}"):
        file.write_text(text)
        with pytest.raises(OpentabError, match="offsets in a form that opentab does not know"):
            batch_end(tmp_path, 7)


@pytest.mark.parametrize(
    ("version", "package"),
    [("4.0.5", "streaming"), ("4.1.0", "streaming.checkpointing"), ("4.3.0", "streaming.checkpointing")],
)
def test_the_class_of_the_checkpoint_moved(version: str, package: str) -> None:
    name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
    assert checkpoint_files(version) == name
