"""`opentab chaos --short` with four of its faults, on one stage: real processes, broken for real."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import opentab as package
from opentab.core.errors import InputError
from opentab_tools.chaos.command import chosen
from opentab_tools.chaos.faults import FAULTS
from opentab_tools.chaos.watch import Flight, Read, Watch
from opentab_tools.servers.broker import Broker
from product import OPENTAB, opentab

NAMES = ("late-events", "executor", "broker", "replica")  # make chaos plays all of them
SECONDS_MAX = 1200


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, object]], str, Path]:
    """One run of all four: what each came to, what was printed, and where its report is."""
    out = tmp_path_factory.mktemp("chaos")
    only = [word for name in NAMES for word in ("--only", name)]
    files = ["--json", str(out / "chaos.json"), "--out", str(out)]
    # Executors run elsewhere, and must find the same code as we do.
    paths = [str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(out)}
    command = [*OPENTAB, "chaos", "--short", "--seed", "20260131", *only, *files]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    run = json.loads((out / "chaos.json").read_text())
    assert run["seed"] == 20260131
    return {fault["fault"]: fault for fault in run["faults"]}, said, out


def test_every_fault_ends_exact_and_is_measured(played: tuple[dict[str, dict[str, object]], str, Path]) -> None:
    faults, _, _ = played
    assert list(faults) == list(NAMES)
    for name, fault in faults.items():
        assert fault["exact"] is True, (name, fault["wrongs"])
        assert float(str(fault["recovery_s"])) >= 0
        assert float(str(fault["staleness_s_max"])) > 0
        assert int(str(fault["in_flight_max"])) > 0


def test_reads_go_on_whatever_is_killed(played: tuple[dict[str, dict[str, object]], str, Path]) -> None:
    """Of two replicas one answers, but for a read in a hundred at most."""
    faults, _, _ = played
    for name in NAMES:
        assert float(str(faults[name]["reads_answered"])) > 0.99, name


def test_late_events_revise_and_adjust(played: tuple[dict[str, dict[str, object]], str, Path]) -> None:
    notes = played[0]["late-events"]["notes"]
    assert isinstance(notes, dict)
    assert notes["revisions"] > 0
    assert notes["adjustments"] > 0


def test_the_report_is_a_table_a_matrix_and_a_picture(played: tuple[dict[str, dict[str, object]], str, Path]) -> None:
    _, said, out = played
    text = (out / "chaos.md").read_text()
    for name in NAMES:
        assert f"| {name} | yes |" in text
    for word in ("Invoices", "Live Updates", "Correctness", "Availability", "Late Events", "Worker", "Master", "Sink"):
        assert f"| {word} |" in text
        assert word in said
    assert "| Scalability |" in text
    assert "seed 20260131" in said
    assert (out / "chaos.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_left_behind(played: tuple[dict[str, dict[str, object]], str, Path]) -> None:
    """Neither files of a run that went well, nor a process."""
    out = played[2]
    assert [path.name for path in out.iterdir() if path.name.startswith("opentab-chaos-")] == []
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if str(out) in line] == []


def test_a_fault_that_does_not_exist_is_named() -> None:
    done = opentab("chaos", "--only", "meteorite", check=False)
    assert done.returncode == 2
    assert "no fault is called 'meteorite'" in done.stderr
    with pytest.raises(InputError):
        chosen(["meteorite"])


def test_the_documents_name_every_fault() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "operating.md").read_text()
    assert [fault.name for fault in FAULTS if f"| `{fault.name}` |" not in text] == []


def test_what_was_over_within_a_look_is_measured_by_its_neighbours() -> None:
    """A look a second: late events are seen half a second after they came, and were on their way at the look before."""
    watch = Watch((), Broker(Path("unused")), "unused")
    assert watch.flight_max(0, 10) is None
    watch.flights += [Flight(1.0, 9), Flight(2.0, 400), Flight(3.0, 20), Flight(4.0, 7), Flight(5.0, 800)]
    assert watch.flight_max(2.2, 2.7) == 400
    assert watch.flight_max(3.0, 3.0) == 400
    assert watch.flight_max(3.1, 3.9) == 20
    assert watch.flight_max(6.0, 7.0) == 800
    assert watch.flight_max(0.0, 0.5) == 9


def test_a_batch_from_before_a_blow_is_no_recovery_from_it() -> None:
    watch = Watch((), Broker(Path("unused")), "unused")
    watch._replicas = (object(), object())  # type: ignore[assignment]
    struck = 100.0

    def read(at: float, staleness_s: float, position: int) -> Read:
        return Read(at, True, staleness_s, position, ())

    def is_fresh() -> bool:
        return watch.is_fresh(since=struck, position=7, staleness_s_max=5.0)

    watch._latest = {0: read(100.2, 0.4, 8), 1: read(100.3, 0.5, 8)}
    assert not is_fresh()
    watch._latest = {0: read(104.0, 0.4, 9), 1: read(103.9, 4.2, 8)}
    assert not is_fresh()
    watch._latest = {0: read(104.0, 0.4, 9), 1: read(104.1, 0.5, 9)}
    assert is_fresh()
