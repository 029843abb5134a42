"""Revoked tokens: one file for each id, in `revoked/` in the ledger, so that every server over the ledger knows them.

The file's name is the id, and its content does not matter. So two that revoke at the same time need no lock, and no
damaged byte makes a token good again.

On a disk each check looks for the token's file. A bucket is listed by a thread once a second. While it cannot be
listed, the last list counts for STALE_SECONDS_MAX; after that, and before the first list, no token is accepted.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from opentab.core.errors import InputError, LedgerError
from opentab.runtime.disk import make_directories, sync
from opentab.runtime.storage import Place
from opentab.tables.error_text import unwritable

FOLDER = "revoked"
is_id = re.compile(r"[A-Za-z0-9_-]{1,128}").fullmatch
LOOK_SECONDS = 1.0
STALE_SECONDS_MAX = 300.0


def revoke(ledger: Place, token_id: str) -> None:
    """Let a token be refused from now on. It is durable once this returns."""
    if not is_id(token_id):
        raise InputError(f"{token_id!r} is no token's id", hint="opentab token issue prints it")
    place = ledger / FOLDER / token_id
    try:
        if place.is_local:
            make_directories(place.parent.path)
            sync(ledger.path)  # also if it was there: whoever made it may not have synced it yet
        try:
            with place.create() as file:
                file.write(f"revoked at {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode())
        except FileExistsError:  # by another process, which may not have synced it yet
            sync(place.path)
            sync(place.parent.path)
    except OSError as error:
        raise unwritable(ledger, error) from error


def take_over(ledger: Place, old_list: Path) -> None:
    """Copy what earlier versions kept in a home into the ledger, for the servers of other homes."""
    try:
        ids = old_list.read_text(encoding="utf-8", errors="replace").split()
    except FileNotFoundError:
        return
    known = set((ledger / FOLDER).names())
    for token_id in ids:
        if token_id not in known and is_id(token_id):
            revoke(ledger, token_id)


class Revocations:
    """Which tokens were revoked, as one process knows it."""

    def __init__(self, ledger: Place, old_list: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`old_list` is the file in the home where earlier versions kept the ids."""
        self._ledger = ledger
        self._folder = ledger / FOLDER
        self._prefix = f"{self._folder.uri}/"
        self._is_local = ledger.is_local
        self._clock = clock
        self._listed: frozenset[str] = frozenset()
        self._listed_at: float | None = None
        self._ended = threading.Event()
        self._old_list = old_list
        self._old_ids: frozenset[str] = frozenset()
        self._old_due = float("-inf")
        self._old_seen: tuple[int, int] | None = None

    def start(self) -> None:
        """Take over the old list; list a bucket now, and then once a second. A disk needs no watch."""
        with suppress(Exception):  # whatever says that the ledger is away: it is tried again at the next start
            take_over(self._ledger, self._old_list)
        if self._is_local:
            return
        self._list()
        threading.Thread(target=self._keep_listing, name="revocations", daemon=True).start()
        atexit.register(self._ended.set)  # before pyarrow lets go of its buckets

    def close(self) -> None:
        """Stop listing."""
        self._ended.set()

    def holds(self, token_id: str) -> bool:
        """Whether a token was revoked. Raises LedgerError if that cannot be told."""
        try:
            if self._is_in_old_list(token_id):
                return True
            if self._is_local:
                return bool(is_id(token_id)) and _is_there(self._prefix + token_id)
        except OSError as error:
            raise _unknown() from error
        if token_id in self._listed:
            return True
        if self._listed_at is None or self._clock() - self._listed_at > STALE_SECONDS_MAX:
            raise _unknown()
        return False

    def _is_in_old_list(self, token_id: str) -> bool:
        now = self._clock()
        if now >= self._old_due:
            try:
                stat = self._old_list.stat()
            except FileNotFoundError:
                stat = None
            if stat is not None and (seen := (stat.st_mtime_ns, stat.st_size)) != self._old_seen:
                self._old_ids = frozenset(self._old_list.read_text(encoding="utf-8", errors="replace").split())
                self._old_seen = seen
            self._old_due = now + LOOK_SECONDS
        return token_id in self._old_ids

    def _keep_listing(self) -> None:
        began = self._clock()
        while not self._ended.wait(max(0.0, began + LOOK_SECONDS - self._clock())):
            began = self._clock()
            self._list()

    def _list(self) -> None:
        began = self._clock()
        try:
            names = self._folder.names()
        except Exception:  # whatever a library says of a bucket that is gone: the list grows old, and that is seen
            return
        # A revoked token stays revoked: nothing is taken from the list.
        self._listed |= frozenset(names)
        self._listed_at = began


def _is_there(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116  (at every request: a Path takes longer)
    except FileNotFoundError:
        return False
    return True


def _unknown() -> LedgerError:
    return LedgerError("the list of revoked tokens cannot be read now", retry_helps=True)
