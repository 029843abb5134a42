"""The follower as a process: python -m opentab.replica.follow HOME PARENT. It ends with its parent."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from opentab import __version__
from opentab.core.errors import OpentabError, ReplicaDamaged
from opentab.replica.flags import clear_trouble, write_following, write_trouble
from opentab.replica.follower import Follower
from opentab.replica.presence import tell
from opentab.runtime import config, logs
from opentab.runtime.config import Home
from opentab.runtime.logs import TroubleLog, fields
from opentab.runtime.memory import keep_memory, keep_modules
from opentab.tables.error_text import reading
from opentab.tables.table import news_of

POLL_SECONDS = 0.02
TELL_SECONDS = 1.0
# A look at a bucket is two requests that are paid for, and a word to it is a third.
BUCKET_POLL_SECONDS = 0.5
BUCKET_TELL_SECONDS = 5.0
TROUBLE_SECONDS = 1.0

logger = logging.getLogger("opentab.replica")


def follow(home: Home, *, parent: int) -> None:
    """Fold whatever is committed, as it is committed, until the parent is gone.

    In trouble it stays where it is and says why; the last state that was right goes on being read. A copy that is
    damaged is not read any more: it is made anew.
    """
    follower = Follower(home)
    seen: list[object] | None = None
    told, is_caught_up, troubles = 0.0, False, TroubleLog(logger)
    write_following(home.replica_path, caught_up=False)
    logger.info("follower starts", extra=fields(version=__version__, position=follower.position))
    ledger = home.ledger
    poll_seconds = POLL_SECONDS if ledger.is_local else BUCKET_POLL_SECONDS
    tell_seconds = TELL_SECONDS if ledger.is_local else BUCKET_TELL_SECONDS
    while os.getppid() == parent:
        try:
            follower.check_reports()
            if time.monotonic() - told > tell_seconds:
                tell(ledger, home.path, follower.position, now_us=time.time_ns() // 1000)
                told = time.monotonic()
                follower.store.clear_dead_readers()
            with reading(ledger):
                now = [news_of(ledger / table) for table in ("journal", "invoices")]
                if now == seen:
                    time.sleep(poll_seconds)
                    continue
                while follower.step() is not None:
                    pass
        except ReplicaDamaged as damage:
            sys.stderr.write(f"opentab: {damage.fact}; it is rebuilt from the ledger\n")
            logger.warning("replica is damaged", extra=fields(reason=damage.fact))
            follower.begin_anew()
            seen, is_caught_up = None, False
            write_following(home.replica_path, caught_up=False)
        except OpentabError as error:
            troubles.see("ledger", error)
            if not error.retry_helps:
                write_following(home.replica_path, caught_up=False)
            write_trouble(home.replica_path, str(error), now_us=time.time_ns() // 1000)
            if not error.retry_helps:
                raise
            seen, is_caught_up = None, False
            time.sleep(TROUBLE_SECONDS)
        else:
            seen = now
            troubles.see("ledger", None)
            clear_trouble(home.replica_path)
            if not is_caught_up:
                logger.info("follower is caught up", extra=fields(position=follower.position))
                write_following(home.replica_path, caught_up=True)
                is_caught_up = True


if __name__ == "__main__":
    keep_memory()
    keep_modules()
    try:
        served = config.load(Path(sys.argv[1]))
        logs.set_up(served, "follower")
        follow(served, parent=int(sys.argv[2]))
    except OpentabError as trouble:
        logger.error("follower stops", extra=fields(reason=str(trouble)))
        sys.stderr.write(f"opentab: the replica stops: {trouble}\n")
        sys.exit(trouble.exit_code)
