"""opentab-client: built from the same sources, installed alone, and used against a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import opentab
from ledgers import bill, new_home
from processes import serving
from product import event

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "clients" / "python"
USE = """
from opentab_client import Client, NotThere

with Client(URL, retry_seconds=60) as tab:
    sent = tab.ingest([{"time": "2026-02-02T00:00:00Z", "customer": "emma", "type": "CALL", "amount": "0.50"}])
    found = tab.customer("emma", min_position=1)
    total: str = found.current.total if found.current else ""
    try:
        tab.total("nobody", "2026-01")
    except NotThere:
        print(sent.accepted, total, [one.invoiced for one in tab.periods()])
"""


def uv(*args: str | Path) -> str:
    known = ROOT / ".tools" / "uv" / "bin" / "uv"
    command = str(known) if known.exists() else shutil.which("uv")
    assert command, "uv is missing: scripts/setup installs it"
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, and a wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", out, SOURCE)
    return out


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the client and what it needs."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, path)
    known = [f"{name}=={version(name)}" for name in ("httpx", "msgspec")]
    (wheel,) = built.glob("*.whl")
    uv("pip", "install", "--quiet", "--python", path / "bin" / "python", wheel, *known)
    return path / "bin" / "python"


def test_the_wheel_has_the_modules_of_the_client_and_nothing_else(built: Path, tmp_path: Path) -> None:
    uv("build", "--quiet", "--wheel", "--out-dir", tmp_path, SOURCE)
    (of_sdist,), (of_checkout,) = built.glob("*.whl"), tmp_path.glob("*.whl")
    names = zipfile.ZipFile(of_checkout).namelist()
    assert sorted(names) == sorted(zipfile.ZipFile(of_sdist).namelist())
    modules = {
        f"opentab_client/{place}{path.name}"
        for folder, place in (("client", ""), ("api", "api/"))
        for path in (ROOT / "src" / "opentab" / folder).glob("*.py")
    }
    assert {name for name in names if ".dist-info/" not in name} == modules | {"opentab_client/py.typed"}
    assert f"opentab_client-{opentab.__version__}-" in of_checkout.name, "both distributions have one version"


def test_the_client_works_with_httpx_and_msgspec_alone(python: Path, tmp_path: Path) -> None:
    installed = {line.split("==")[0] for line in uv("pip", "freeze", "--python", python).splitlines()}
    ours = {line.split(" @ ")[0] for line in installed}
    assert ours <= {"opentab-client", "httpx", "msgspec", "httpcore", "h11", "anyio", "sniffio", "idna", "certifi",
                    "typing-extensions"}  # fmt: skip
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    bill(home, event("emma", "5.00", "2026-01-10T00:00:00Z"), event("emma", "2.00", "2026-02-01T00:00:00Z"))
    with serving(home, workers=1) as url:
        done = subprocess.run(
            [python, "-I", "-c", USE.replace("URL", repr(url))], capture_output=True, text=True, timeout=90, check=False
        )
    assert (done.stdout, done.stderr) == ("1 2.000000 ['5.00', '0.00']\n", "")


def test_the_client_is_typed(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(USE.replace("URL", '"http://127.0.0.1:1"') + "reveal_type(found.closed[0].types)\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache",
         "--python-executable", python, script],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    assert 'Revealed type is "dict[str, str]"' in checked.stdout.replace("builtins.", "")
