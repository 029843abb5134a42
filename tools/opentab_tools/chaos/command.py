"""`opentab chaos` as a user sees it: what is played, told line by line, and what is left in files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from opentab.core.errors import InputError, MachineError
from opentab.runtime import terminal
from opentab_tools.chaos.faults import FAULTS, Fault
from opentab_tools.chaos.picture import draw
from opentab_tools.chaos.play import Result, Run, play
from opentab_tools.chaos.report import COLUMNS, as_json, markdown, matrix, row
from opentab_tools.chaos.stage import LONG, SHORT, Store
from opentab_tools.servers.required_tools import find_matplotlib

NAMESPACE = "OPENTAB_CHAOS_SEED"  # set within a mount namespace of our own, with the seed drawn outside of it


def run_chaos(
    names: Sequence[str], *, seed: int, short: bool, minutes: float, json_: Path | None, out: Path | None
) -> bool:
    """Play the faults, print and write what was measured; whether every one of them ended exact."""
    faults = chosen(names)
    if out is not None:
        find_matplotlib()
    for path in (out, json_.parent if json_ else None):
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
    if any(fault.store is Store.OWN_DISK for fault in faults) and NAMESPACE not in os.environ:
        _enter_namespace(seed)
    seed = int(os.environ.get(NAMESPACE, seed))
    directory = Path(tempfile.mkdtemp(prefix="opentab-chaos-"))
    terminal.write(f"opentab chaos: {len(faults)} faults, seed {seed}")
    run = play(
        directory,
        faults,
        seed=seed,
        tempo=SHORT if short else LONG,
        minutes=minutes,
        say=_say,
        tell=_tell,
    )
    _print(run)
    if json_ is not None:
        json_.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(run))) + b"\n")
    if out is not None:
        (out / "chaos.md").write_text(markdown(run), encoding="utf-8")
        draw(run, out / "chaos.png")
    if run.exact:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        terminal.write(f"what the processes left is in {directory}")
    return run.exact


def chosen(names: Sequence[str]) -> list[Fault]:
    """The faults of these names, in the order of the table; all of them if there are no names."""
    known = [fault.name for fault in FAULTS]
    for name in names:
        if name not in known:
            raise InputError(f"no fault is called {name!r}", hint=f"there are: {', '.join(known)}")
    return [fault for fault in FAULTS if not names or fault.name in names]


def _enter_namespace(seed: int) -> NoReturn:
    """Start over in a mount namespace of our own, where a disk can be mounted that nobody else sees."""
    unshare = ["unshare", "--mount"]
    try:
        works = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        works = False
    if not works:
        others = " ".join(f"--only {fault.name}" for fault in FAULTS if fault.store is not Store.OWN_DISK)
        raise MachineError(
            "a disk can be neither filled nor cut off here: only root may mount one",
            hint=f"run as root, or play the others: {others}",
        )
    os.environ[NAMESPACE] = str(seed)
    sys.stdout.flush()
    os.execvp(unshare[0], [*unshare, sys.executable, "-m", "opentab.cli", *sys.argv[1:]])


def _say(line: str) -> None:
    terminal.write(terminal.paint(line, terminal.DIM))
    sys.stdout.flush()


def _tell(result: Result) -> None:
    mark = terminal.paint("exact ", terminal.GREEN) if result.exact else terminal.paint("WRONG ", terminal.RED)
    told = (f"{head} {cell}" for head, cell in zip(COLUMNS[2:], row(result)[2:], strict=True))
    terminal.write(f"{mark}  {result.fault.name:<13} {', '.join(told)}")
    for wrong in result.wrongs:
        terminal.write(f"           {terminal.printable(wrong)}")
    sys.stdout.flush()


def _print(run: Run) -> None:
    terminal.write()
    terminal.print_table(list(COLUMNS), [row(result) for result in run.results], right=list(COLUMNS[2:]))
    terminal.write()
    terminal.print_table(["what", "measured"], matrix(run))
    if run.broken:
        terminal.write(terminal.paint(run.broken, terminal.RED))
    exact = sum(result.exact for result in run.results)
    line = f"{exact} of {len(run.results)} faults ended exact, seed {run.seed}"
    terminal.write(terminal.paint(line, terminal.GREEN if run.exact else terminal.RED))
