"""What keeps a follower from going on: a small file beside its copy, for those who are asked whether all is well."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec


class Trouble(msgspec.Struct, frozen=True):
    """Why a replica stays where it is."""

    text: str
    since_us: int


def write_trouble(replica: Path, text: str, *, now_us: int) -> None:
    """Say what is wrong; a trouble that lasts keeps the moment at which it began."""
    known = read_trouble(replica)
    if known is not None and known.text == text:
        return
    path = _path(replica)
    aside = path.with_suffix(".new")
    # Where even this cannot be written, the follower's own output says it.
    with suppress(OSError):
        replica.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(msgspec.json.encode(Trouble(text, now_us)))
        aside.replace(path)


def clear_trouble(replica: Path) -> None:
    """All is well again."""
    _path(replica).unlink(missing_ok=True)


def read_trouble(replica: Path) -> Trouble | None:
    """What is wrong, if anything."""
    try:
        return msgspec.json.decode(_path(replica).read_bytes(), type=Trouble)
    except (OSError, msgspec.MsgspecError):
        return None


def _path(replica: Path) -> Path:
    return replica / "trouble.json"
