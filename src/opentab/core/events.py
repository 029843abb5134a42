"""The vocabulary of the wire: what an event may say, and why an input cannot be billed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

CUSTOMER_BYTES_MAX = 256
UNBOUNDED_US = 2**62  # a window that never ends
UNBOUNDED_BYTES = 2**62  # no line is longer
NESTING_MAX = 100  # deeper JSON is not read (RFC 8259, section 9)


class Reason(StrEnum):
    """Why an input was rejected, in order of precedence: the first that applies is the reason."""

    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_TIME = "bad_time"
    TIME_IN_FUTURE = "time_in_future"
    BAD_AMOUNT = "bad_amount"
    AMOUNT_OUT_OF_RANGE = "amount_out_of_range"
    AMOUNT_PRECISION = "amount_precision"
    CURRENCY_MISMATCH = "currency_mismatch"
    UNKNOWN_TYPE = "unknown_type"
    BAD_CUSTOMER = "bad_customer"
    CONFLICTING_DUPLICATE = "conflicting_duplicate"
    REVERSAL_UNKNOWN = "reversal_unknown"
    REVERSAL_MISMATCH = "reversal_mismatch"
    REVERSAL_TWICE = "reversal_twice"


# Why an event that can be billed by itself is rejected: because of others in the log.
REASONS_BY_OTHERS = (
    Reason.CONFLICTING_DUPLICATE,
    Reason.REVERSAL_UNKNOWN,
    Reason.REVERSAL_MISMATCH,
    Reason.REVERSAL_TWICE,
)


class Rules(msgspec.Struct, frozen=True):
    """What decides whether, when and where an event counts. Recorded with every batch."""

    currency: str
    zone: str
    types: tuple[str, ...]
    future_skew_us: int
    out_of_orderness_us: int
    allowed_lateness_us: int
    idle_after_us: int
    revision_step_us: int = 86_400_000_000
    dedupe_us: int = 0  # the window in which a repeated id counts once; 0: every event counts
    event_bytes_max: int = UNBOUNDED_BYTES  # of a line without its newline; batches of earlier versions had no limit
