"""A pipeline that stands by takes over from one that is killed or frozen, and the bill stays exact."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from opentab.billing.standby import BATCH_SECONDS_MIN, SILENCE_SECONDS_MAX, Leader
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat
from processes import PATIENCE_SECONDS, check_exact, position, streams, wait_for


def beat(at: int, **more: object) -> Heartbeat:
    known = {"run": "a", "pid": 1, "streaming": True, "position": 4, "caught_up": True, "caught_up_us": None}
    return Heartbeat(at_us=at, unread_segments=0, **{**known, **more})  # type: ignore[arg-type]


def test_only_the_time_between_changes_counts() -> None:
    leader = Leader()
    assert leader.look(beat(10**15), 0.0) is None  # whatever the leader's own clock says
    assert leader.look(beat(5), SILENCE_SECONDS_MAX) is None
    assert leader.look(beat(5), 2 * SILENCE_SECONDS_MAX) is None
    assert leader.look(beat(5), 2 * SILENCE_SECONDS_MAX + 0.1) == "no heartbeat for 5 s"


def test_where_there_never_was_a_pipeline_it_begins() -> None:
    leader = Leader()
    assert leader.look(None, 0.0) is None
    assert leader.look(None, SILENCE_SECONDS_MAX + 0.1) == "there has been no pipeline yet"


@pytest.mark.parametrize(
    ("billing_ms", "median_ms", "hangs"),
    [(29_000, 100, False), (31_000, 100, True), (31_000, 4_000, False), (41_000, 4_000, True), (None, 0, False)],
)
def test_a_batch_that_takes_far_longer_than_others_hangs(billing_ms: float, median_ms: float, hangs: bool) -> None:
    assert BATCH_SECONDS_MIN == 30
    why = Leader().look(beat(1, billing_ms=billing_ms, median_ms=median_ms), 0.0)
    assert why == ("batch 5 has been running for %.0f s" % (billing_ms / 1000) if hangs else None)


def wait_until_it_stands_by(process: subprocess.Popen[str]) -> None:
    """Read what it says until its Spark is up and warm; one that never says so is killed."""
    assert process.stdout is not None
    patience = threading.Timer(PATIENCE_SECONDS, process.kill)
    patience.start()
    said = []
    for line in process.stdout:
        said.append(line)
        if "standing by: " in line:
            break
    patience.cancel()
    assert process.poll() is None, said


def test_it_takes_over_from_one_that_is_killed_and_from_one_that_is_frozen(
    small_home: Home, start: Callable[..., subprocess.Popen[str]]
) -> None:
    first = start("run", home=small_home)
    wait_for(lambda: streams(small_home, first), "the first one streams")
    second = start("run", "--standby", home=small_home)
    simulator = start("generate", "--months", "1", "--month-seconds", "60", "--events", "1500", home=small_home)
    wait_for(lambda: position(small_home) > 0, "the first one bills")
    wait_until_it_stands_by(second)
    before = position(small_home)
    os.killpg(first.pid, signal.SIGKILL)
    wait_for(lambda: streams(small_home, second), "the second one streams")
    wait_for(lambda: position(small_home) > before + 1, "the second one bills")

    third = start("run", "--standby", home=small_home)
    wait_until_it_stands_by(third)
    os.killpg(second.pid, signal.SIGSTOP)
    wait_for(lambda: streams(small_home, third), "the third one streams")
    os.killpg(second.pid, signal.SIGCONT)
    wait_until_it_stands_by(second)  # it was fenced, and stands by again
    assert simulator.wait(timeout=PATIENCE_SECONDS) == 0
    second.terminate()
    third.terminate()
    for one in (second, third):
        output, _ = one.communicate(timeout=PATIENCE_SECONDS)
        assert (one.returncode, "Traceback" in output) == (0, False), output
    check_exact(small_home)
