"""A release as a user gets it: built, installed into an empty environment, and used there, away from the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from product import event

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
VERSION = "7.8.9"
PROGRAM = """
import asyncio

import opentab
from opentab.client import AsyncClient, Client, ClientError, Invoice, Live
from pyspark.sql import DataFrame, SparkSession


class Table(opentab.Source):
    def stream(self, spark: SparkSession, offsets: opentab.Offsets) -> DataFrame:
        return spark.readStream.parquet("events")

    def ends(self) -> opentab.Offsets:
        return {"default": 0}


def bill(spark: SparkSession) -> int:
    def watch(progress: opentab.Progress) -> None:
        print(progress.events)

    try:
        return opentab.run("home", spark=spark, source=Table(), once=True, watch=watch).events
    except opentab.OpentabError as error:
        raise SystemExit(str(error)) from error


def total_of(customer: str) -> str | None:
    with Client("http://127.0.0.1:8080", token="secret") as tab:
        try:
            taken = tab.ingest([{"customer": customer, "type": "CALL", "amount": "0.1250"}], wait="committed")
        except ClientError:
            return None
        invoices: list[Invoice] = tab.invoices(customer)
        current = tab.customer(customer).current
        return current.total if current and taken and invoices else None


async def watch(customer: str) -> list[Live]:
    async with AsyncClient("http://127.0.0.1:8080") as tab:
        return [totals async for totals in tab.live(customer=customer)]


asyncio.run(watch("emma"))
"""
WRONG = """
import opentab
from opentab.client import Client

opentab.rnu("home")
opentab.run("home", source=7)
Client("http://127.0.0.1:8080").customer(7)
Client("http://127.0.0.1:8080").customer("emma").sum
"""
NOT_COPIED = (".git", ".venv", ".tools", ".*_cache", "dist", "__pycache__", ".hypothesis", "opentab-*")


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """In an environment that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def release(source: Path, version: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, source / "scripts" / "release.py", version, cwd=source, check=check)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source, released."""
    source = tmp_path_factory.mktemp("release") / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_COPIED))
    changelog = source / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", "## Unreleased\n\n- A change.\n"))
    (source / ".tools" / "uv" / "bin").mkdir(parents=True)
    (source / ".tools" / "uv" / "bin" / "uv").symlink_to(UV if UV.exists() else str(shutil.which("uv")))
    assert f"git tag v{VERSION}" in release(source, VERSION).stdout
    return source


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of an empty environment that the wheel was installed into, with its dependencies as they are locked."""
    place = tmp_path_factory.mktemp("installed")
    uv = source / ".tools" / "uv" / "bin" / "uv"
    (wheel,) = (source / "dist").glob("opentab-*.whl")
    run(uv, "venv", "--quiet", "--python", sys.executable, place / "venv", cwd=place)
    into = ("--quiet", "--python", place / "venv" / "bin" / "python")
    install = (uv, "pip", "install", *into, "--constraint", source / "requirements.lock", wheel)
    if run(*install, "--offline", cwd=place, check=False).returncode:  # not all of it is in uv's cache
        run(*install, cwd=place)
    run(uv, "pip", "check", *into, cwd=place)
    yield place / "venv" / "bin"
    shutil.rmtree(place)


def test_a_release_writes_the_version_and_dates_the_changelog(source: Path) -> None:
    changes = (source / "CHANGELOG.md").read_text()
    (heading,) = [line for line in changes.splitlines() if line.startswith(f"## {VERSION} - ")]
    assert changes.index("## Unreleased\n\n") < changes.index(heading) < changes.index("- A change.")
    assert f'__version__ = "{VERSION}"\n' in (source / "src" / "opentab" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("7.8.8", "7.8.8 does not come after 7.8.9; choose a later one"),
        ("8.0", "8.0 is not a version like 1.2.3"),
        ("8.0.0", "CHANGELOG.md has nothing under Unreleased; write what changed"),
    ],
)
def test_what_cannot_be_released_changes_nothing(source: Path, version: str, why: str) -> None:
    before = [(source / name).read_bytes() for name in ("CHANGELOG.md", "src/opentab/__init__.py")]
    refused = release(source, version, check=False)
    assert (refused.returncode, refused.stderr) == (1, f"opentab: {why}\n")
    assert [(source / name).read_bytes() for name in ("CHANGELOG.md", "src/opentab/__init__.py")] == before
    assert len(list((source / "dist").glob(f"opentab-{VERSION}*"))) == 2


def test_the_small_client_has_the_same_version(source: Path) -> None:
    names = {path.name for path in (source / "dist").glob("opentab_client*")}
    assert names == {f"opentab_client-{VERSION}.tar.gz", f"opentab_client-{VERSION}-py3-none-any.whl"}


def test_the_sdist_holds_what_builds_and_tests_it(source: Path) -> None:
    with tarfile.open(source / "dist" / f"opentab-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"pyproject.toml", "Makefile", "LICENSE", "README.md", "scripts/setup", "requirements.lock"}
    assert needed | {"src/opentab/py.typed", "tests/conftest.py", "tools/opentab_tools/__init__.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".tools", ".git/", "dist"))]


def test_the_wheel_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    opentab = installed / "opentab"
    assert run(opentab, "--version", cwd=tmp_path).stdout == f"opentab, version {VERSION}\n"
    assert "Commands:" in run(opentab, "--help", cwd=tmp_path).stdout
    run(opentab, "init", "--home", "home", cwd=tmp_path)
    (tmp_path / "events.jsonl").write_text(event() + "\n")
    said = run(opentab, "ingest", "--home", "home", "events.jsonl", cwd=tmp_path)
    assert "1 line" in said.stdout + said.stderr
    assert list((tmp_path / "home" / "log").rglob("*.seg*"))
    run(installed / "python", "-c", "import opentab.client, opentab.server.app, opentab.billing.session", cwd=tmp_path)


def test_a_typed_program_is_checked_strictly(installed: Path, tmp_path: Path) -> None:
    """The package says by py.typed that it is typed; what a program does wrong with it is found."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "python")
    said = run(*command, "program.py", "wrong.py", cwd=tmp_path, check=False).stdout
    errors = [line.rpartition("[")[2] for line in said.splitlines() if ": error: " in line]
    assert errors == ["attr-defined]", "arg-type]", "arg-type]", "attr-defined]"], said
    assert "program.py" not in said


@pytest.mark.parametrize("name", ["bench", "chaos"])
def test_tools_of_the_source_say_so(installed: Path, name: str, tmp_path: Path) -> None:
    said = run(installed / "opentab", name, "--short", cwd=tmp_path, check=False)
    assert said.returncode == 2
    fact, hint = said.stderr.splitlines()
    assert fact == f"opentab: opentab {name} comes with the source, not with the package"
    assert hint.strip() == f"clone it and run make {name}"
