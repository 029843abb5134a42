"""A replica on a small disk of its own that is full at different points. Runs in its own mount namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ledgers import bill, new_home
from opentab.core.errors import DiskFull
from opentab.replica.follower import Follower, is_whole
from product import event
from scene_disk_full import fill

FREE_KIB = (0, 4, 16, 64, 128)


def main(path: Path) -> None:
    home = new_home(path / "home")
    for day in range(1, 9):
        bill(home, *(event(f"c{number}", "1.00", f"2026-01-{day:02d}T00:00:00Z") for number in range(2_000)))
    home.replica_path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home.replica_path)], check=True)
    filler = home.replica_path / "filler"
    for free_kib in FREE_KIB:
        fill(filler, free_kib * 1024)
        try:
            catch_up(home)
            print("went on")  # noqa: T201
        except DiskFull as error:
            print("stopped:", error)  # noqa: T201
        filler.unlink()
    print("events:", catch_up(home), "whole:", is_whole(home.replica_path))  # noqa: T201


def catch_up(home: object) -> int:
    follower = Follower(home)  # type: ignore[arg-type]
    try:
        while follower.step() is not None:
            pass
        with follower.store.read() as snapshot:
            meta = snapshot.meta()
            return meta.events if meta else 0
    finally:
        follower.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
