"""How many examples a law is tried with: all of them in `make test`, a tenth in `make test-unit`."""

from __future__ import annotations

from hypothesis import settings

PROFILES = {"opentab": 100, "quick": 10}  # a law that says nothing else has so many


def examples(count: int) -> settings:
    """`count` of them with all profiles but the quick one."""
    return settings(max_examples=max(2, count * settings.default.max_examples // PROFILES["opentab"]))
