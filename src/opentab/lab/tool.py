"""Programs of others that a bench measures with."""

from __future__ import annotations

import shutil

from opentab.errors import MachineError


def find_tools(*names: str) -> None:
    """Say before anything starts which program is missing, and how to get it."""
    for name in names:
        if shutil.which(name) is None:
            raise MachineError(f"{name} is missing", hint="on Debian run: apt-get install wrk redis-server")
