"""Whether a machine's clock and the arrivals in a log agree, and the restart for when they do not (ADR 20).

Arrival decides what is a repeat, what is in the future and which partition is idle, and within a partition it only goes
forward. So one append under a wrong clock would spoil all that follow. Appends are refused instead.
"""

from __future__ import annotations

import zlib
from datetime import timedelta

import msgspec

from opentab.core.errors import ClockMismatch
from opentab.core.periods import format_us
from opentab.runtime.config import Home
from opentab.runtime.storage import Place

NAME = "clock.json"
AHEAD_MAX_US = 60_000_000  # clocks of several machines differ by less
MICROSECOND = timedelta(microseconds=1)


class Restart(msgspec.Struct, frozen=True):
    """What producers must know of the last restart of the arrival clock."""

    at_us: int  # counts as the last arrival of a partition
    upto: dict[str, int]  # whose last segment, or next offset, is still this one or an earlier one
    crc32: int | None = None  # of the same without it; None: written by an earlier version


def restart_place(home: Home) -> Place:
    """Where producers find the last restart: in the log's directory; a topic has no room for it, so in the ledger."""
    return (Place.of(home.log_path) if home.kafka is None else home.ledger) / NAME


def read_restart(place: Place) -> Restart | None:
    """The last restart, or None if there was none, or it is damaged: appends are refused then, as they were before."""
    try:
        found = msgspec.json.decode(place.read(), type=Restart)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    plain = msgspec.structs.replace(found, crc32=None)
    return plain if found.crc32 in (None, _checksum(plain)) else None


def write_restart(place: Place, restart: Restart) -> None:
    """Tell producers of a restart; it is durable on return."""
    place.parent.make()
    sealed = msgspec.structs.replace(restart, crc32=_checksum(restart))
    place.replace(msgspec.json.encode(sealed), durable=True)


def _checksum(restart: Restart) -> int:
    return zlib.crc32(msgspec.json.encode(restart))


def mismatch(what: str, last_us: int, now_us: int, silence_max: timedelta | None) -> ClockMismatch | None:
    """Why nothing may be appended after an arrival at `last_us`, with a clock that says `now_us`; None if it may."""
    last, now = format_us(last_us), format_us(now_us)
    if last_us > now_us + AHEAD_MAX_US:
        return ClockMismatch(
            f"the last arrival in {what} is {last}, ahead of this machine's clock, {now}: nothing is appended",
            hint="set the clock right; if the arrival is what is wrong: opentab log clock --restart",
        )
    if silence_max is not None and now_us - last_us > silence_max // MICROSECOND:
        return ClockMismatch(
            f"the last arrival in {what} is {last}, and this machine's clock, {now}, is more than log.silence_max "
            "later: nothing is appended",
            hint="set the clock right if it is ahead; if the log was silent for so long, raise log.silence_max, "
            "or: opentab log clock --restart",
        )
    return None
