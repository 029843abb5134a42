"""When events count as arrived, where the arrival clock was restarted (ADR 20).

Two questions. A line of the log is stamped with an arrival: what does a batch take it for? And a remembered id has the
arrival that its batch took it for: what is that worth after later restarts? Without a restart both are the stamp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opentab.core.periods import Int64s
from opentab.core.records import ClockRestart

NEVER_US = -(2**63)


def trusted_us(stamp_us: int, restarts: Sequence[ClockRestart], partition: str, offset: int) -> int:
    """What a stamp is taken for: what was in the log at a restart arrived by then at the latest."""
    return min([stamp_us, *(one.at_us for one in restarts if offset < one.upto.get(partition, 0))])


def trusted_stamps(
    stamps_us: Int64s, restarts: Sequence[ClockRestart], partition: str, offsets: Int64s | np.int64
) -> Int64s:
    """The same for many lines of one partition."""
    for one in restarts:
        covered = offsets < one.upto.get(partition, 0)
        stamps_us = np.where(covered, np.minimum(stamps_us, one.at_us), stamps_us)
    return stamps_us


def remembered_us(
    arrived_us: Int64s, batch: Int64s, restarts: Sequence[ClockRestart], forgotten_us: int | None
) -> Int64s:
    """What the arrivals of remembered ids are worth now; NEVER_US where the id is forgotten."""
    known = np.ones(1 if not restarts else len(arrived_us), np.bool_)
    for one in restarts:
        before = batch < one.batch
        if one.forgotten_us is not None:
            known &= ~before | (batch >= one.remembers_from) | (arrived_us >= one.forgotten_us)
        arrived_us = np.where(before, np.minimum(arrived_us, one.at_us), arrived_us)
    if forgotten_us is not None:
        known = known & (arrived_us >= forgotten_us)
    return np.where(known, arrived_us, NEVER_US)
