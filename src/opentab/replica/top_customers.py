"""The customers with the largest totals of a period, kept exactly without an order over all of them.

Kept are all customers down to a threshold in the order of total and name. Whoever is touched and reaches it comes
in, whoever falls behind it goes. If they become too many the threshold rises; if too few are left, it is found
anew from all customers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from opentab.replica.name_order import Listed
from opentab.replica.wide import Cells, micros_of

TOP = 1_000  # so many are always known
KEPT_MAX = 4 * TOP
KEPT_AFTER = 2 * TOP
STRIDE = 256  # names between two that are looked at first
INT64 = (-(2**63), 2**63 - 1)


class Tops(msgspec.Struct):
    """All customers of a period down to the threshold; micros are texts, for they may be wide."""

    members: dict[str, str] = {}
    threshold: tuple[str, str] | None = None  # micros and customer of the last one in; None: everyone is in

    def ordered(self) -> list[tuple[str, int]]:
        """The largest first; equals by name."""
        found = [(customer, int(micros)) for customer, micros in self.members.items()]
        return sorted(found, key=lambda item: _rank(item[1], item[0]))[:TOP]


def take_in(tops: Tops, names: Listed, totals: Cells) -> None:
    """Take in new totals of some customers, whose names are sorted."""
    if len(names) > KEPT_MAX:
        _raise_threshold(tops, names, totals)
    last = _last(tops)
    for index in _near(tops, names, totals):
        customer, micros = names[index].decode(), micros_of(totals[index])
        if last is None or _rank(micros, customer) <= last:
            tops.members[customer] = str(micros)
        else:
            tops.members.pop(customer, None)
    if len(tops.members) > KEPT_MAX:
        _trim(tops)


def too_few(tops: Tops) -> bool:
    """Whether customers behind the threshold may belong to the top by now."""
    return tops.threshold is not None and len(tops.members) < TOP


def found_anew(everyone: Iterable[tuple[str, int]]) -> Tops:
    """The tops from all customers of a period."""
    tops = Tops(members={})
    last = None
    for customer, micros in everyone:
        if last is None or _rank(micros, customer) <= last:
            tops.members[customer] = str(micros)
            if len(tops.members) > KEPT_MAX:
                _trim(tops)
                last = _last(tops)
    return tops


def _rank(micros: int, customer: str) -> tuple[int, bytes]:
    return -micros, customer.encode()


def _last(tops: Tops) -> tuple[int, bytes] | None:
    return None if tops.threshold is None else _rank(int(tops.threshold[0]), tops.threshold[1])


def _trim(tops: Tops) -> None:
    kept = sorted(tops.members.items(), key=lambda item: _rank(int(item[1]), item[0]))[:KEPT_AFTER]
    tops.members = dict(kept)
    tops.threshold = (kept[-1][1], kept[-1][0])


def _raise_threshold(tops: Tops, names: Listed, totals: Cells) -> None:
    """Where many are touched, find out beforehand what it takes to be among them."""
    if not _is_narrow(totals).all():
        return
    last = _last(tops)
    values = totals["low"].view("<i8")
    # Who is behind the threshold cannot raise it.
    at = np.arange(len(values)) if last is None else np.flatnonzero(values >= min(max(-last[0], INT64[0]), INT64[1]))
    if len(at) < KEPT_AFTER:
        return
    values = values[at]
    lowest = np.partition(values, -KEPT_AFTER)[-KEPT_AFTER]
    above = int((values > lowest).sum())
    customer = names[int(at[np.flatnonzero(values == lowest)[KEPT_AFTER - above - 1]])].decode()
    new = _rank(int(lowest), customer)
    if last is None or new < last:
        tops.members = {name: micros for name, micros in tops.members.items() if _rank(int(micros), name) <= new}
        tops.threshold = (str(lowest), customer)


def _near(tops: Tops, names: Listed, totals: Cells) -> Iterable[int]:
    """Which of the touched customers can matter: most are far behind the threshold and never were in."""
    if tops.threshold is None or not INT64[0] <= int(tops.threshold[0]) <= INT64[1] or not len(names):
        return range(len(names))
    values, lowest = totals["low"].view("<i8"), int(tops.threshold[0])
    behind = bisect_right(names, tops.threshold[1].encode())
    far = values < lowest
    far[behind:] |= values[behind:] == lowest
    near = set(np.flatnonzero(~(far & _is_narrow(totals))).tolist())
    some = [names[at] for at in range(0, len(names), STRIDE)]
    for customer in tops.members:
        name = customer.encode()
        first = max(0, STRIDE * (bisect_right(some, name) - 1))
        at = bisect_left(names, name, first, min(first + STRIDE, len(names)))
        if at < len(names) and names[at] == name:
            near.add(at)
    return near


def _is_narrow(totals: Cells) -> npt.NDArray[np.bool_]:
    """Which of them fit into 64 bits."""
    found: npt.NDArray[np.bool_] = totals["high"] == (totals["low"].view("<i8") >> 63)
    return found
