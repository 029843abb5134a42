"""Programs of others that a bench measures with."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from opentab.core.errors import MachineError


def find_matplotlib() -> None:
    """Say before anything starts that there can be no pictures."""
    if find_spec("matplotlib") is None:
        raise MachineError("matplotlib is missing", hint="install opentab[tools], or do without the pictures")


def find_tools(*names: str) -> None:
    """Say before anything starts which program is missing, and how to get it."""
    for name in names:
        if shutil.which(name) is None:
            raise MachineError(f"{name} is missing", hint="on Debian run: apt-get install wrk redis-server")
