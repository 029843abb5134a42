"""How fast to send: many at once to a receiver that takes them, one now and then to one that does not. Pure."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from opentab.sinks.http import Outcome, Verdict

GONE_FAILURES = 8  # in a row: then the trouble is not that of single invoices
GONE_REFUSALS = 200
PROBE_SECONDS = 0.5
PROBE_SECONDS_MAX = 10.0
RETRY_AFTER_SECONDS_MAX = 300.0  # for the receiver as a whole
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 600.0
STUCK_SECONDS = 3600.0


def backoff(failures: int, dice: Random, *, first: float, longest: float) -> float:
    """Seconds to wait after so many failures: anything up to a limit that doubles, so that many do not come at once."""
    return dice.uniform(0, min(longest, first * 2 ** min(failures, 32)))


def pause_of(verdict: Verdict, attempts: int, dice: Random) -> timedelta:
    """How long one parcel waits after a try that failed, with so many failed ones before it."""
    if verdict.outcome is Outcome.REFUSED:
        return timedelta(seconds=STUCK_SECONDS * dice.uniform(1, 1.5))
    pause = timedelta(seconds=backoff(attempts, dice, first=RETRY_SECONDS, longest=RETRY_SECONDS_MAX))
    asked = min(verdict.retry_after or timedelta(), timedelta(seconds=STUCK_SECONDS))
    return max(pause, asked)


class Pace:
    """What the last answers of a receiver allow. All moments are seconds of one clock."""

    def __init__(self, parallel: int, dice: Random) -> None:
        self._parallel = parallel
        self._dice = dice
        self._failures = self._refusals = self._probes = 0
        self._opens_at = 0.0

    @property
    def gone(self) -> bool:
        """Whether nothing was taken lately."""
        return self._failures >= GONE_FAILURES or self._refusals >= GONE_REFUSALS

    def room(self, now: float) -> int:
        """How many requests may be under way."""
        if now < self._opens_at:
            return 0
        return 1 if self.gone else self._parallel

    def saw(self, verdict: Verdict, now: float) -> bool:
        """Take note of a verdict; True if a receiver that was gone is back."""
        was_gone = self.gone
        match verdict.outcome:
            case Outcome.DELIVERED:
                self._failures = self._refusals = 0
            case Outcome.REFUSED:  # at least it answers
                self._failures = 0
                self._refusals += 1
            case Outcome.LATER:
                self._failures += 1
        if not self.gone:
            self._probes = 0
        # Those that were under way when it went tell nothing new.
        elif now >= self._opens_at:
            self._probes += 1
            pause = backoff(self._probes, self._dice, first=PROBE_SECONDS, longest=PROBE_SECONDS_MAX)
            self._opens_at = now + pause
        if verdict.slow_down or self.gone:
            asked = verdict.retry_after.total_seconds() if verdict.retry_after else 0.0
            self._opens_at = max(self._opens_at, now + min(asked, RETRY_AFTER_SECONDS_MAX))
        return was_gone and not self.gone
