"""What a peer's run came to."""

from __future__ import annotations

import msgspec


class PeerRun(msgspec.Struct, frozen=True):
    """One run of a peer over a topic: its measured part, and the bill that it came to."""

    name: str
    version: str
    measured_events: int  # behind the warm-up
    measured_seconds: float
    event_count: int  # of what is proved by sum_micros
    sum_micros: int
    checkpoints: int
    state_bytes: int
    memory_bytes_max: int
    settings: dict[str, str]

    @property
    def events_per_second(self) -> float:
        return self.measured_events / self.measured_seconds
