"""Named moments at which a test may kill or stop this process for real.

OPENTAB_CRASH_AT="staged:3" kills it with SIGKILL when the moment `staged` comes for the third time;
"staged:3:STOP" stops it there with SIGSTOP, as a machine that hangs would; "gathered:3:RAISE" raises
an error there, as a bug would. Without that variable a moment costs one look at a dictionary.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "OPENTAB_CRASH_AT"
MOMENTS = (
    *("taken", "staged", "committed", "archived", "clock_restarted"),
    *("compacting", "compacted", "snapshot", "snapshotted"),
    *("closing", "closing_staged", "issued", "exporting", "exported"),
    *("folding", "folded"),
    *("queueing", "queued", "delivered"),
    "gathered",
)
RAISE = "RAISE"

_times_seen: dict[str, int] = {}


class Fault(Exception):
    """The error that a test asked for."""


def moment(name: str) -> None:
    """Die here if a test asked for it."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    wanted_name, wanted_time, wanted_signal = [*wanted.split(":"), "KILL"][:3]
    _times_seen[name] = _times_seen.get(name, 0) + 1
    if wanted_name == name and _times_seen[name] == int(wanted_time):
        if wanted_signal == RAISE:
            raise Fault(wanted)
        os.kill(os.getpid(), signal.Signals[f"SIG{wanted_signal}"])
