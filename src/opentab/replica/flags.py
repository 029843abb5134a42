"""Small files next to a replica's copy, by which its processes tell each other how it is.

`following.json` is the follower's: who it is, and whether it has had all of the ledger since it began.
`trouble.json` is the follower's, too: what keeps it from going on, for those who are asked whether all is well.
`damage.json` is any reader's: that the copy is damaged, for the follower, which begins anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

DAMAGE_NAME = "damage.json"
FOLLOWING_NAME = "following.json"

Said = TypeVar("Said", "Following", "Trouble", "Damage")


class Following(msgspec.Struct, frozen=True):
    """The process that writes the copy."""

    pid: int
    began: float  # when the process began: a number is given to others, too
    caught_up: bool

    @property
    def is_alive(self) -> bool:
        try:
            return bool(psutil.Process(self.pid).create_time() == self.began)
        except psutil.Error:
            return False


class Trouble(msgspec.Struct, frozen=True):
    """Why a replica stays where it is."""

    text: str
    since_us: int


class Damage(msgspec.Struct, frozen=True):
    """What a reader found in a copy."""

    text: str
    inode: int  # of the copy: a report that comes late may be of the one before


def write_following(replica: Path, *, caught_up: bool) -> None:
    """Say that this process writes the copy."""
    # Where the disk is full, the replica stays what it was for those who ask.
    with suppress(OSError):
        began = psutil.Process().create_time()
        _replace(replica / FOLLOWING_NAME, Following(os.getpid(), began, caught_up))


def read_following(replica: Path) -> Following | None:
    """Who writes the copy, or was the last to do it."""
    return _read(replica / FOLLOWING_NAME, Following)


def write_trouble(replica: Path, text: str, *, now_us: int) -> None:
    """Say what is wrong; a trouble that lasts keeps the moment at which it began."""
    known = read_trouble(replica)
    if known is not None and known.text == text:
        return
    # Where even this cannot be written, the follower's own output says it.
    with suppress(OSError):
        replica.mkdir(parents=True, exist_ok=True)
        _replace(_path(replica), Trouble(text, now_us))


def clear_trouble(replica: Path) -> None:
    """All is well again."""
    _path(replica).unlink(missing_ok=True)


def read_trouble(replica: Path) -> Trouble | None:
    """What is wrong, if anything."""
    return _read(_path(replica), Trouble)


def report_damage(replica: Path, text: str, *, inode: int) -> None:
    """Tell the follower that the copy with this inode is damaged."""
    path = replica / DAMAGE_NAME
    # Where it cannot be written, the copy may be gone already.
    with suppress(OSError):
        if not path.exists():
            _replace(path, Damage(text, inode))


def reported_damage(replica: Path) -> Damage | None:
    """What a reader reported, if anything."""
    return _read(replica / DAMAGE_NAME, Damage)


def clear_damage(replica: Path) -> None:
    """Forget the report: it was of an earlier copy."""
    (replica / DAMAGE_NAME).unlink(missing_ok=True)


def _replace(path: Path, said: Following | Trouble | Damage) -> None:
    aside = path.with_suffix(f".{os.getpid()}.new")
    aside.write_bytes(msgspec.json.encode(said))
    aside.replace(path)


def _read(path: Path, kind: type[Said]) -> Said | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _path(replica: Path) -> Path:
    return replica / "trouble.json"
