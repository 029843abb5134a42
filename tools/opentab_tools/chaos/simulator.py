"""The load: `opentab generate` again and again, month after month, for as long as it is wanted. Every bill is known."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from opentab.core.errors import MachineError, OpentabError
from opentab.core.periods import Period, next_period
from opentab.runtime.config import Home
from opentab_tools.servers.daemon import Daemon

FIRST_PERIOD = "1971-01"
RUN_MONTHS = 2  # so that what is late for the first one finds it closed


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of a run's events come after their month was closed, and after it was final."""

    late: float = 0.01
    beyond: float = 0.002


USUAL = Shares()


class Simulator:
    """Writes months to a home's log while it is on. Months follow each other through all runs."""

    def __init__(self, home: Home, *, seed: int, month_seconds: float, events: int) -> None:
        self._home = home
        self._seed = seed
        self._events = events
        self.month_seconds = month_seconds
        self._period: Period = FIRST_PERIOD
        self._run: Daemon | None = None
        self._runs = 0
        self._wanted: Shares | None = None
        self.months_written = 0  # by runs that are over

    def begin(self, shares: Shares = USUAL) -> None:
        """Load on."""
        self._wanted = shares
        self.keep()

    def keep(self) -> None:
        """To be called now and then: starts the next run where one has ended, while load is wanted."""
        if not self._is_over() or self._wanted is None:
            return
        self._start(self._wanted)

    def end(self) -> None:
        """Load off, once the run that is under way is over."""
        self._wanted = None

    def is_idle(self) -> bool:
        """Whether all that was to be written is in the log; raises if a run has failed."""
        return self._wanted is None and self._is_over()

    def check(self) -> None:
        """Raise if a run has failed: the bills are ahead of the log then, for good."""
        self._is_over()

    def kill(self) -> None:
        """At the end of everything, whatever it is at."""
        if self._run is not None:
            self._run.kill()

    def _is_over(self) -> bool:
        if self._run is None:
            return True
        if self._run.runs:
            return False
        if self._run.wait() != 0:
            raise MachineError(f"the simulator failed: {self._run.last_words()}", hint=f"see {self._run.log_path}")
        self._run = None
        self.months_written += RUN_MONTHS
        return True

    def _start(self, shares: Shares) -> None:
        first = self._period
        for _ in range(RUN_MONTHS):
            self._period = next_period(self._period)
        if self._period > "2020-01":
            raise OpentabError("all months up to 2020 are simulated", hint="let it run for fewer minutes")
        self._runs += 1
        values = {
            "home": self._home.path,
            "first-period": first,
            "months": RUN_MONTHS,
            "month-seconds": self.month_seconds,
            "events": self._events,
            "late": shares.late,
            "beyond": shares.beyond,
            "bad": 0.005,
            "seed": self._seed + self._runs,
        }
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "opentab.cli", "generate", *words]
        self._run = Daemon("generate", command, self._home.logs_path)
        self._run.start()
