"""What a load of reads came to."""

from __future__ import annotations

from dataclasses import dataclass

CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Load:
    """So many answers a second, and how long one took."""

    per_second: float
    p50_ms: float
    p99_ms: float
