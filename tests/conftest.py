"""What several tests share: homes, a log to append to, one Spark session."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from law_examples import PROFILES
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config
from opentab.runtime.config import Home
from processes import SMALL_BATCHES
from product import OPENTAB

# Java's quick compiler alone: a test's Spark lives for seconds, and needs two thirds of the processor's time with it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# What a test writes is its own, as an operator's secrets have to be.
os.umask(0o077)

for name, count in PROFILES.items():
    settings.register_profile(
        name, max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Spark session, shared by the tests that need no process of their own."""
    from opentab.billing.session import open_session

    session = open_session(config.load(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture
def small_home(tmp_path: Path) -> Home:
    (tmp_path / "opentab.toml").write_text(SMALL_BATCHES)
    return config.load(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands in the background; whatever is left of them is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_command(*args: str, home: Home, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*OPENTAB, *args, "--home", str(home.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_command
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
