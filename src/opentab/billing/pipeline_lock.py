"""One pipeline a home: its lock, and the claim of the run that started last."""

from __future__ import annotations

from pathlib import Path

from opentab.core.errors import HomeLocked
from opentab.runtime.lock import Lock
from opentab.runtime.storage import Place


class Claim:
    """Which run of the pipeline the home belongs to: the one that started last.

    It tells a pipeline that was taken over to stop. Nothing rests on it: the journal's fence decides.
    """

    def __init__(self, ledger: Place, run: str) -> None:
        """Claim the home for a run."""
        self._place = ledger / "pipeline.claim"
        self._run = run.encode()
        ledger.make()
        self._place.replace(self._run)

    def is_ours(self) -> bool:
        """Whether nobody else has claimed the home since."""
        try:
            return self._place.read() == self._run
        except OSError:
            return True


class HomeLock(Lock):
    """Held while a pipeline works on a home."""

    def __init__(self, home: Path, *, take_over: bool) -> None:
        """Take the lock, or raise HomeLocked; with `take_over` go on without it: the journal's fence
        keeps the numbers right. It is ours once the other has let go."""
        super().__init__(home / "pipeline.lock")
        if self.take_if_free() or take_over:
            return
        who = self.holder()
        self.release()
        raise HomeLocked(
            f"another pipeline works on {home}: {who}",
            hint="stop it first, or start with --take-over if it hangs",
        )
