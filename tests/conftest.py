"""What several tests share: homes, lines, and one way to run the product as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from opentab import config
from opentab.config import Home
from opentab.log import DirectoryLog, Producer

OPENTAB = [sys.executable, "-m", "opentab.cli"]

settings.register_profile(
    "opentab", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("opentab")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return config.load(tmp_path / "home")


@pytest.fixture
def append(home: Home) -> Callable[..., int]:
    """Append lines to the home's log as one segment."""
    log = DirectoryLog(home.log_path)

    def append_lines(*lines: str | bytes, partition: str = "default") -> int:
        body = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n"
        return Producer(log, partition).append(body)

    return append_lines


def event(
    customer: str = "emma", amount: str = "1.00", time: str = "2026-01-15T12:00:00Z", type: str = "CALL"
) -> str:
    """One event as a line."""
    return json.dumps({"time": time, "customer": customer, "type": type, "amount": amount})


def opentab(
    *args: str | Path,
    home: Home | Path | None = None,
    stdin: str | bytes = b"",
    check: bool = True,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would; `check` wants exit code 0."""
    command = [*OPENTAB, *map(str, args)]
    if home is not None:
        command += ["--home", str(home.path if isinstance(home, Home) else home)]
    done = subprocess.run(
        command,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )
    result = subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    assert "Traceback" not in result.stderr, result.stderr
    assert not check or result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result


def json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Spark session, shared by the tests that need no process of their own."""
    from opentab.pipeline.session import open_session

    session = open_session(config.load(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()
