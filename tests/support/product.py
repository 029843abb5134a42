"""The product as a user runs it, and the lines it is fed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from opentab.runtime.config import Home

OPENTAB = [sys.executable, "-m", "opentab.cli"]


def event(customer: str = "emma", amount: str = "1.00", time: str = "2026-01-15T12:00:00Z", type: str = "CALL") -> str:
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
