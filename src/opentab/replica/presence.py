"""Which replicas there are: each says once a second, beside the ledger that it follows, how far it is."""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from opentab.runtime.storage import Place

FORGOTTEN_US = 10 * 60 * 1_000_000  # who has been silent for so long is no longer counted
SUFFIX = ".json"


class Presence(msgspec.Struct, frozen=True):
    """A replica, as it last spoke."""

    name: str  # its machine, and the name of its home
    position: int
    at_us: int


def tell(ledger: Place, home: Path, position: int, *, now_us: int) -> None:
    """Say that a replica lives. Where the ledger cannot be written to, it goes on unseen."""
    node = platform.node()
    replicas = ledger / "replicas"
    name = f"{hashlib.sha256(f'{node}:{home}'.encode()).hexdigest()[:16]}{SUFFIX}"
    with suppress(OSError):
        replicas.make(parents=False)
        (replicas / name).replace(msgspec.json.encode(Presence(f"{node}:{home.name}", position, now_us)))


def present(ledger: Place, *, now_us: int) -> list[Presence]:
    """The replicas that spoke lately, by name."""
    found = []
    with suppress(OSError):
        replicas = ledger / "replicas"
        for name in replicas.names():
            if not name.endswith(SUFFIX):
                continue
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                one = msgspec.json.decode((replicas / name).read(), type=Presence)
                if now_us - one.at_us < FORGOTTEN_US:
                    found.append(one)
    return sorted(found, key=lambda one: one.name)
