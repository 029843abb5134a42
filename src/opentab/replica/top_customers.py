"""The customers with the largest totals of a period: a threshold in place of an order over all of them.

A replica answers "the thousand largest" of a million customers. To sort all of them after every batch would take
longer than the fold. Kept are those down to a threshold in the order of total and name: whoever is touched and
reaches it comes in, whoever falls below it goes. If they become too many, the threshold rises; if fewer than TOP are
left, they are found again in all customers, which is rare: there are two to four times as many as are asked for.

The simple version that it must agree with: sorted(all customers, key=(-total, name))[:TOP].
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.periods import Int64s

TOP = 1_000  # so many are always known
KEPT_MAX = 4 * TOP
KEPT_AFTER = 2 * TOP


class Tops(msgspec.Struct):
    """All customers of a period down to the threshold, with their micros."""

    members: dict[str, int] = {}
    threshold: tuple[int, str] | None = None  # micros and customer of the last one in; None: everyone is in

    def ordered(self) -> list[tuple[str, int]]:
        """The largest first; equals by name."""
        return sorted(self.members.items(), key=_rank_of)[:TOP]

    def add(self, customers: Iterable[tuple[str, int]]) -> None:
        """Take in those of some customers, none of them a member, who reach the threshold."""
        last = _last(self)
        for customer, micros in customers:
            if last is None or _rank_of((customer, micros)) <= last:
                self.members[customer] = micros
                if len(self.members) > KEPT_MAX:
                    self.cut_at(sorted(map(_rank_of, self.members.items()))[KEPT_AFTER - 1])
                    last = _last(self)

    def cut_at(self, last: tuple[int, bytes]) -> None:
        """Raise the threshold."""
        self.members = {item[0]: item[1] for item in self.members.items() if _rank_of(item) <= last}
        self.threshold = (-last[0], last[1].decode())


def take_in(tops: Tops, names: pa.Array, totals: Int64s) -> None:
    """Take in new totals of some customers, whose names are sorted."""
    members = pa.array([customer.encode() for customer in tops.members], pa.binary())
    for name in names.filter(pc.is_in(names, members)).to_pylist():
        del tops.members[name.decode()]
    near = np.arange(len(names)) if tops.threshold is None else np.flatnonzero(totals >= tops.threshold[0])
    if len(near) > KEPT_MAX:
        # Of those that are touched no more than so many can be among the largest of all.
        near = near[totals[near] >= np.partition(totals[near], -KEPT_AFTER)[-KEPT_AFTER]]
        near = near[np.argsort(~totals[near], kind="stable")[:KEPT_AFTER]]  # equals stay in the order of their names
        lowest = -int(totals[near[-1]]), names[int(near[-1])].as_py()
        known = _last(tops)
        tops.cut_at(lowest if known is None else min(lowest, known))
    tops.add((names[index].as_py().decode(), int(totals[index])) for index in near.tolist())


def too_few(tops: Tops) -> bool:
    """Whether customers below the threshold may belong to the top by now."""
    return tops.threshold is not None and len(tops.members) < TOP


def found_anew(everyone: Iterable[tuple[str, int]]) -> Tops:
    """The tops from all customers of a period."""
    tops = Tops(members={})
    tops.add(everyone)
    return tops


def _rank_of(item: tuple[str, int]) -> tuple[int, bytes]:
    return -item[1], item[0].encode()


def _last(tops: Tops) -> tuple[int, bytes] | None:
    return None if tops.threshold is None else (-tops.threshold[0], tops.threshold[1].encode())
