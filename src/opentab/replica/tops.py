"""The customers with the largest totals of a period, kept exactly without an order over all of them.

Kept are all customers at or above a threshold. Whoever is touched and reaches it comes in, whoever falls below
it goes. If they become too many the threshold rises; if too few are left, it is found anew from all customers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from opentab.replica.wide import Cells, micros_of

TOP = 1_000  # so many are always known
KEPT_MAX = 4 * TOP
KEPT_AFTER = 2 * TOP
INT64_MIN = -(2**63)


class Tops(msgspec.Struct):
    """All customers of a period at or above the threshold; micros are texts, for they may be wide."""

    members: dict[str, str] = {}
    threshold: str | None = None  # None: everyone is in

    def ordered(self) -> list[tuple[str, int]]:
        """The largest first; equals by name."""
        found = [(customer, int(micros)) for customer, micros in self.members.items()]
        return sorted(found, key=lambda item: (-item[1], item[0].encode()))[:TOP]


def touched(tops: Tops, customers: Sequence[bytes], totals: Cells) -> None:
    """Take in new totals of some customers."""
    threshold = None if tops.threshold is None else int(tops.threshold)
    for index in _near(totals, threshold, tops, customers):
        customer, micros = customers[index].decode(), micros_of(totals[index])
        if threshold is None or micros >= threshold:
            tops.members[customer] = str(micros)
        else:
            tops.members.pop(customer, None)
    if len(tops.members) > KEPT_MAX:
        _trim(tops)


def too_few(tops: Tops) -> bool:
    """Whether customers below the threshold may belong to the top by now."""
    return tops.threshold is not None and len(tops.members) < TOP


def found_anew(everyone: Iterable[tuple[str, int]]) -> Tops:
    """The tops from all customers of a period."""
    tops = Tops(members={})
    for customer, micros in everyone:
        if tops.threshold is None or micros >= int(tops.threshold):
            tops.members[customer] = str(micros)
            if len(tops.members) > KEPT_MAX:
                _trim(tops)
    return tops


def _trim(tops: Tops) -> None:
    kept = sorted(tops.members.items(), key=lambda item: (-int(item[1]), item[0].encode()))
    lowest = int(kept[KEPT_AFTER - 1][1])
    # All that equal the lowest stay, or the threshold would not tell who is in.
    tops.members = {customer: micros for customer, micros in kept if int(micros) >= lowest}
    tops.threshold = str(lowest)


def _near(totals: Cells, threshold: int | None, tops: Tops, customers: Sequence[bytes]) -> Sequence[int]:
    """Which of the touched customers can matter: most are far below the threshold and never were in."""
    if threshold is None or not INT64_MIN <= threshold < 2**63:
        return range(len(customers))
    narrow = totals["high"] == (totals["low"].view("<i8") >> 63)
    far = narrow & (totals["low"].view("<i8") < threshold)
    if not far.any():
        return range(len(customers))
    members = {customer.encode() for customer in tops.members}
    return [index for index, customer in enumerate(customers) if not far[index] or customer in members]
