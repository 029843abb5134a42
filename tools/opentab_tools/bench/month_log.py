"""A log for measurements: one month of so many customers, long ago, in time and in plain spelling."""

from __future__ import annotations

from opentab.runtime.config import Home
from opentab.simulator.generator import Outcome, Plan, generate

PERIOD = "2026-01"  # long enough ago for every event to be in time
EVENTS_PER_CUSTOMER = 5


def write_month(
    home: Home, *, customers: int, events_per_customer: int = EVENTS_PER_CUSTOMER, seed: int = 1, id_share: float = 0.8
) -> Outcome:
    """Write the month's events to a home's log."""
    plan = Plan(
        seed=seed,
        customers=customers,
        events_per_customer=events_per_customer,
        first_period=PERIOD,
        id_share=id_share,
        late_share=0.0,
        variety_share=0.0,
    )
    return generate(plan, home)
