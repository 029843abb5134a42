"""A ledger on a small disk of its own that is full at different points. Runs in its own mount namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from opentab.audit import verify
from opentab.billing.run import Pipeline
from opentab.billing.session import open_session
from opentab.core.errors import DiskFull
from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.simulator.generator import Plan, generate

FREE_KIB = (0, 8, 16, 24, 40, 64)


def main(path: Path) -> None:
    (path / "opentab.toml").write_text("[pipeline]\nbatch_events_max = 400\ncompact_files = 4\nsnapshot_batches = 3\n")
    home = config.load(path)
    home.ledger.path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home.ledger)], check=True)
    generate(Plan(months=2, events_per_customer=200, bad_share=0.02, first_period="2026-01"), home)
    spark = open_session(home)
    for free_kib in FREE_KIB:
        filler = home.ledger.path / "filler"
        fill(filler, free_kib * 1024)
        try:
            Pipeline(home, once=True, spark=spark).run()
            print("went on")  # noqa: T201
        except DiskFull as error:
            print("stopped:", error)  # noqa: T201
        filler.unlink()
    Pipeline(home, once=True, spark=spark).run()
    spark.stop()
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    report = verify(home, journal)
    print("exact" if report.agrees and report.not_yet_billed_segments == 0 else report)  # noqa: T201


def fill(path: Path, free: int) -> None:
    """Leave `free` bytes on the disk."""
    room = os.statvfs(path.parent)
    with path.open("wb") as file:
        file.write(bytes(max(0, room.f_bavail * room.f_frsize - free)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
