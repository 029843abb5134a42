"""All that is fetched, at set-up or at run time, has a hash that stands in this project."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from opentab.core.errors import MachineError
from opentab.runtime.config import SETTINGS
from opentab.runtime.published import CONNECTOR, CONNECTOR_HASHES, check_published
from opentab_tools.peers import flink
from opentab_tools.servers import jars

ROOT = Path(__file__).parents[2]


def test_a_jar_is_what_was_published_or_refused(tmp_path: Path) -> None:
    hashes = tmp_path / "list.sha256"
    hashes.write_text(f"{hashlib.sha256(b'right').hexdigest()}  a-1.0.jar\n")
    plain, of_ivy, other = tmp_path / "a-1.0.jar", tmp_path / "org.example_a-1.0.jar", tmp_path / "b-1.0.jar"
    for jar in (plain, of_ivy, other):
        jar.write_bytes(b"right")
    check_published([plain, of_ivy], hashes)
    of_ivy.write_bytes(b"wrong")
    with pytest.raises(
        MachineError, match=r"org.example_a-1.0.jar was fetched, and is not what was published \(remove"
    ):
        check_published([plain, of_ivy], hashes)
    with pytest.raises(MachineError, match=r"b-1.0.jar was fetched unasked"):
        check_published([other], hashes)


def lines(path: Path) -> list[list[str]]:
    return [line.split("  ") for line in path.read_text().splitlines()]


def test_lists_name_what_is_fetched() -> None:
    (connector,) = [setting for setting in SETTINGS if setting.name == "kafka.connector"]
    assert connector.default == f'"{CONNECTOR}"'
    _, artifact, version = CONNECTOR.split(":")
    ours, tools = lines(CONNECTOR_HASHES), lines(jars.HASHES)
    assert f"{artifact}-{version}.jar" in [name for _, name in ours]
    for module in (*jars.KAFKA, flink._module()):
        _, artifact, version = module.split(":")
        assert f"{artifact}-{version}.jar" in [name for _, name in tools]
    for found in (ours, tools):
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest, _ in found)
        assert len({name for _, name in found}) == len(found)
    assert {tuple(line) for line in ours} <= {tuple(line) for line in tools}


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        *(f"requirements-{x}.lock" for x in ("newest-spark", "lowest", "image", "uv", "build", "flink")),
    ],
)
def test_every_package_of_a_lock_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert packages and all("--hash=sha256:" in line for line in packages)
    assert "://" not in text


def test_locks_are_of_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = (ROOT / "requirements-build.lock").read_text()
    assert all(f"{wanted} " in build for wanted in project["build-system"]["requires"])
    for group in ("uv", "flink"):
        (wanted,) = project["dependency-groups"][group]
        assert f"{wanted} " in (ROOT / f"requirements-{group}.lock").read_text()
    assert project["dependency-groups"]["flink"] == [f"apache-flink=={flink.FLINK}"]


def test_the_lowest_versions_are_those_of_the_project() -> None:
    lock = (ROOT / "requirements-lowest.lock").read_text()
    for wanted in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name, least = re.match(r"([\w-]+)>=([\d.]+)", wanted).groups()  # type: ignore[union-attr]
        # The least version itself, or the first that the others can live with.
        assert re.search(rf"^{name}=={re.escape(least)}(\.\d+)* ", lock, re.MULTILINE), wanted


def test_the_set_up_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "scripts" / "setup").read_text().replace("\\\n", " ")
    installs = re.findall(r"^.*pip (?:install|sync) .*$", text, re.MULTILINE)
    assert installs
    # Ours needs nothing else; the lowest versions that we allow are looked for anew, in an environment for a test.
    hashed = ("--require-hashes", "--no-deps -e .", "--resolution lowest-direct")
    assert all(any(option in line for option in hashed) for line in installs), installs
    assert 'export UV_BUILD_CONSTRAINT="$PWD/requirements-build.lock"' in text
