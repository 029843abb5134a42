"""What belongs to this user alone: homes, secrets, and scratch files."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from opentab.core.errors import ConfigError
from opentab.runtime.disk import make_directories, sync

OTHERS = 0o077  # the group and everybody else
WORLD_AND_CHANGES = 0o037  # all that a group may have is to read


def make_private(path: Path) -> None:
    """Make a directory for its owner alone, if it is missing; its name is durable on return."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync(path.parent)


def open_to_others(path: Path) -> bool:
    """Whether a directory of ours lets other users in."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and bool(found.st_mode & OTHERS)


def read_secret(path: Path) -> str:
    """What is in a file that nobody else may read; raises OSError, UnicodeDecodeError, or ConfigError if others may."""
    with path.open(encoding="utf-8") as file:
        _check(path, os.fstat(file.fileno()))
        return file.read()


def check_secret(path: Path) -> None:
    """Raise ConfigError if others may read a file with a secret."""
    _check(path, path.stat())


def scratch_directory() -> Path:
    """Where this user's processes on this machine keep scratch files, below the directory for temporary files.

    Anybody may have made a directory of that name. Where it is not ours alone, each process has one of its own.
    """
    path = Path(tempfile.gettempdir()) / f"opentab-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS
    return path if is_ours else _directory_of_this_process(path.parent)


def _check(path: Path, found: os.stat_result) -> None:
    # A file of root's may be lent to a group of ours, as PostgreSQL has it too: so Kubernetes mounts secrets.
    is_lent = found.st_uid == 0 and os.geteuid() != 0
    if found.st_mode & (WORLD_AND_CHANGES if is_lent else OTHERS):
        raise ConfigError(f"{path} holds a secret, and other users may read it", hint=f"chmod 600 {path}")


@cache
def _directory_of_this_process(parent: Path) -> Path:
    path = Path(tempfile.mkdtemp(prefix="opentab-", dir=parent))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
