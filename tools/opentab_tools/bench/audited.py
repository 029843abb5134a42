"""The audit behind a measured run, and of the replica beside it: a run whose bill is wrong counts as failed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab.replica import blocks
from opentab.replica.reader import Reader
from opentab.runtime.config import Home
from opentab.simulator.expected import read_bills


def audit(home: Home, *, expected_path: Path | None = None, but: Collection[str] = ()) -> None:
    """Raise unless `opentab verify` agrees with a home, and with the simulator's bills where their path is given.

    Checks in `but` may differ: what was put into a ledger by hand is in no log.
    """
    if expected_path is not None:
        shutil.copytree(expected_path, home.expected_path, dirs_exist_ok=True)
    words = ["verify", "--expected" if expected_path else "--no-expected", "--format", "json"]
    command = [sys.executable, "-m", "opentab.cli", *words, "--home", str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    try:
        checks = json.loads(done.stdout)["checks"]
    except ValueError:
        raise OpentabError(f"the audit failed: {(done.stdout + done.stderr).strip()[-300:]}") from None
    differing = [check for check in checks if check["differences"]]
    wrong = [check for check in differing if check["name"] not in but]
    if wrong or not differing:  # in the second case it has failed in another way
        raise OpentabError(f"the audit did not agree: {str(wrong or done.stderr.strip())[:300]}")


def audit_replica(home: Home, *, expected_path: Path) -> None:
    """Raise unless a home's replica holds, for each customer and month, what the simulator planned."""
    planned = read_bills(expected_path)
    reader = Reader(home.replica_path)
    try:
        with reader.read() as snapshot:
            held = {
                (period, name.decode()): micros
                for period in sorted({period for period, _ in planned})
                for name, micros in blocks.totals(snapshot, period.encode())
            }
    finally:
        reader.close()
    wrong = [key for key in planned.keys() | held.keys() if planned.get(key) != held.get(key)]
    if wrong:
        raise OpentabError(f"the replica differs from the planned bills for {len(wrong):,} customers, as {min(wrong)}")
