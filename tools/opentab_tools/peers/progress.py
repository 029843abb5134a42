"""What Spark's streaming queries say of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from opentab_tools.measuring.measured_run import WARM_UP_BATCHES


def behind_the_warm_up(progress: Sequence[Any]) -> tuple[int, float]:
    """How many rows the batches behind the warm-up read, and in how many seconds; of all where there are no others."""
    measured = progress[WARM_UP_BATCHES:] or progress
    began, ended = _moments(measured[0])[0], _moments(measured[-1])[1]
    return sum(one["numInputRows"] for one in measured), ended - began


def _moments(progress: Any) -> tuple[float, float]:
    """When a batch began, and when it was done."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return began, began + progress["durationMs"]["triggerExecution"] / 1000
