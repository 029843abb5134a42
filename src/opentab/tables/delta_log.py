"""A table's `_delta_log` on a disk: what makes its commits and checkpoints survive a power cut.

delta-rs writes commit files and checkpoints without syncing them. After a power cut such a file may be there with
no bytes in it. So the order is ours: a commit is synced before anyone acts on it, a checkpoint is durable before it
gets its name, and only then are the commits that it covers deleted.

What a cut can still leave is a torn commit at the end, which nobody was told of: `recover` sets it aside. Torn means
that bytes are missing. A commit that has all its bytes and cannot be read is damaged, and may have been told of.
Earlier versions could leave a torn checkpoint without the commits that it covered: `CommitsLost`, see rebuild.py.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from opentab.runtime.disk import sync

LOG_NAME = "_delta_log"
HINT_NAME = "_last_checkpoint"
COMMIT_PATTERN = re.compile(r"(\d{20})\.json")
CHECKPOINT_PATTERN = re.compile(r"(\d{20})\.checkpoint\.parquet")
SCRATCH_PREFIX = "_checkpoint-"  # Delta readers and vacuum pass over names that begin with an underscore
SCRATCH_SECONDS_MAX = 3600
SETTLED_SECONDS = 60  # writers sync at once, and the kernel writes back what is half as old
TORN_SUFFIX = ".torn"


class CommitsLost(Exception):
    """Commits are gone without which the table cannot be read."""


class CommitDamaged(Exception):
    """A commit has all its bytes, and they are not those that were written."""


class DeltaLog:
    """The log of one table, as files."""

    def __init__(self, table: Path) -> None:
        self.path = table / LOG_NAME

    def commit_path(self, version: int) -> Path:
        return self.path / f"{version:020d}.json"

    def checkpoint_path(self, version: int) -> Path:
        return self.path / f"{version:020d}.checkpoint.parquet"

    def commits(self) -> list[int]:
        """The versions whose commit files are there, in order."""
        return self._versions(COMMIT_PATTERN)

    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, in order."""
        return self._versions(CHECKPOINT_PATTERN)

    def sync_commits(self, after: int, upto: int) -> None:
        """Make the commits after a version durable, and their names."""
        for version in range(after + 1, upto + 1):
            with suppress(FileNotFoundError):  # a checkpoint covers it, and it was deleted
                sync(self.commit_path(version))
        sync(self.path)

    def settled(self, upto: int) -> int:
        """The last version, up to this one, that a checkpoint covers or that was written long ago."""
        version, before = upto, time.time() - SETTLED_SECONDS
        base = max((known for known in self.checkpoints() if known <= upto), default=-1)
        while version > base:
            with suppress(FileNotFoundError):
                if self.commit_path(version).stat().st_mtime < before:
                    break
            version -= 1
        return version

    def write_checkpoint(self, version: int) -> None:
        """Write a checkpoint that is durable before it has its name.

        delta-rs writes a checkpoint into the log that it reads. It is given a scratch log of hard links to ours.
        """
        self._remove_old_scratch()
        scratch = self.path.parent / f"{SCRATCH_PREFIX}{secrets.token_hex(4)}"
        copy = DeltaLog(scratch)
        copy.path.mkdir(parents=True)
        try:
            base = max((known for known in self.checkpoints() if known < version), default=-1)
            if base >= 0:
                os.link(self.checkpoint_path(base), copy.checkpoint_path(base))
            for commit in range(base + 1, version + 1):
                os.link(self.commit_path(commit), copy.commit_path(commit))
            DeltaTable(str(scratch), version=version).create_checkpoint()
            for made, name in (
                (copy.checkpoint_path(version), self.checkpoint_path(version)),
                (copy.path / HINT_NAME, self.path / HINT_NAME),
            ):
                sync(made)
                made.replace(name)
                sync(self.path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def clear(self, covered: int, *, older_than_seconds: float) -> None:
        """Delete commits and checkpoints before a durable checkpoint, once they are old enough."""
        before = time.time() - older_than_seconds
        commits = [self.commit_path(version) for version in self.commits() if version < covered]
        checkpoints = [self.checkpoint_path(version) for version in self.checkpoints() if version < covered]
        for path in (*commits, *checkpoints):
            with suppress(FileNotFoundError):  # another writer cleared it
                if path.stat().st_mtime <= before:
                    path.unlink()

    def recover(self) -> list[str]:
        """Set aside what a power cut tore, where the table can be read without it. Returns the files' names.

        Only for the one that may write to the table. Raises CommitsLost where whole commits follow a torn or missing
        one: they would be lost with it; and CommitDamaged where a commit is neither whole nor torn.
        What is left is durable on return.
        """
        checkpoints = {version: self._has_checkpoint(version) for version in self.checkpoints()}
        whole = [version for version, is_whole in checkpoints.items() if is_whole]
        torn_checkpoints = [version for version, is_whole in checkpoints.items() if not is_whole]
        last = max(whole, default=-1)
        while self._has_commit(last + 1):
            last += 1
        left = [version for version in self.commits() if version > last]
        if any(map(self._has_commit, left)) or max(torn_checkpoints, default=-1) > last:
            raise CommitsLost(f"commit {last + 1} is gone from {self.path}")
        torn = [self.checkpoint_path(version) for version in torn_checkpoints]
        torn += [self.commit_path(version) for version in left]
        torn += [] if self._has_hint(whole) else [self.path / HINT_NAME]
        for path in torn:
            path.replace(path.with_name(path.name + TORN_SUFFIX))
        self._sync_all(max(whole, default=-1), last)
        return [path.name for path in torn]

    def _sync_all(self, checkpoint: int, last: int) -> None:
        """Make durable what the table is read from: whoever wrote it may have died before it was synced."""
        with suppress(FileNotFoundError):
            sync(self.path / HINT_NAME)
        if checkpoint >= 0:
            sync(self.checkpoint_path(checkpoint))
        if last >= 0:
            self.sync_commits(checkpoint, last)

    def _has_commit(self, version: int) -> bool:
        """Whether a commit is there and not torn: objects of JSON, one a line."""
        try:
            data = self.commit_path(version).read_bytes()
        except FileNotFoundError:
            return False
        lines = data.splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                msgspec.json.decode(line, type=dict)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                if _is_torn(data, line if number == len(lines) else b"", error):
                    return False
                raise CommitDamaged(f"line {number} of {self.commit_path(version).name} cannot be read") from error
        return bool(lines)

    def _has_checkpoint(self, version: int) -> bool:
        try:
            table = pq.read_table(self.checkpoint_path(version), partitioning=None)
            return all(table[name].null_count < table.num_rows for name in ("protocol", "metaData"))
        except (OSError, KeyError, pa.ArrowException):
            return False

    def _has_hint(self, whole: list[int]) -> bool:
        """Whether the hint names a checkpoint that is whole, or is not there: readers do without."""
        try:
            hint = msgspec.json.decode((self.path / HINT_NAME).read_bytes(), type=dict)
            return hint.get("version") in whole
        except FileNotFoundError:
            return True
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False

    def _versions(self, pattern: re.Pattern[str]) -> list[int]:
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            return sorted(int(match[1]) for entry in entries if (match := pattern.fullmatch(entry.name)))
        return []

    def _remove_old_scratch(self) -> None:
        for left in self.path.parent.glob(f"{SCRATCH_PREFIX}*"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > SCRATCH_SECONDS_MAX:
                    shutil.rmtree(left, ignore_errors=True)


def _is_torn(data: bytes, last_line: bytes, error: Exception) -> bool:
    """Whether a commit that cannot be read lacks bytes: they are zeros, or its last line breaks off.

    A whole line ends with a brace. One flipped bit makes one zero at most.
    """
    if data.endswith(b"\0") or b"\0\0" in data:
        return True
    return "truncated" in str(error) and bool(last_line) and not last_line.endswith(b"}")
