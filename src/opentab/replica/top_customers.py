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


class TopCustomers(msgspec.Struct):
    """All customers of a period down to the threshold, with their micros."""

    members: dict[str, int] = {}
    threshold: tuple[int, str] | None = None  # micros and customer of the last one in; None: everyone is in

    def ordered(self) -> list[tuple[str, int]]:
        """The largest first; equals by name."""
        return sorted(self.members.items(), key=_rank_of)[:TOP]

    def last(self) -> tuple[int, bytes] | None:
        """The rank of the last one in."""
        return None if self.threshold is None else (-self.threshold[0], self.threshold[1].encode())

    def add(self, customers: Iterable[tuple[str, int]]) -> None:
        """Take in those of some customers, none of them a member, who reach the threshold."""
        last = self.last()
        for customer, micros in customers:
            if last is None or _rank_of((customer, micros)) <= last:
                self.members[customer] = micros
                if len(self.members) > KEPT_MAX:
                    self.cut_at(sorted(map(_rank_of, self.members.items()))[KEPT_AFTER - 1])
                    last = self.last()

    def cut_at(self, last: tuple[int, bytes]) -> None:
        """Raise the threshold."""
        self.members = {item[0]: item[1] for item in self.members.items() if _rank_of(item) <= last}
        self.threshold = (-last[0], last[1].decode())


def with_totals(
    tops: TopCustomers, names: pa.Array, totals: Int64s, everyone: Iterable[tuple[str, int]]
) -> TopCustomers:
    """The top customers after some, whose names are sorted, have new totals; `everyone` is gone through if need be."""
    members = pa.array([customer.encode() for customer in tops.members], pa.binary())
    for name in names.filter(pc.is_in(names, members)).to_pylist():
        del tops.members[name.decode()]
    near = np.arange(len(names)) if tops.threshold is None else np.flatnonzero(totals >= tops.threshold[0])
    if len(near) > KEPT_MAX:
        # Of those that are touched no more than so many can be among the largest of all.
        near = near[totals[near] >= np.partition(totals[near], -KEPT_AFTER)[-KEPT_AFTER]]
        near = near[np.argsort(~totals[near], kind="stable")[:KEPT_AFTER]]  # equals stay in the order of their names
        lowest = -int(totals[near[-1]]), names[int(near[-1])].as_py()
        known = tops.last()
        tops.cut_at(lowest if known is None else min(lowest, known))
    tops.add((names[index].as_py().decode(), int(totals[index])) for index in near.tolist())
    if tops.threshold is not None and len(tops.members) < TOP:
        # Customers below the threshold may belong to the top by now.
        tops = TopCustomers(members={})
        tops.add(everyone)
    return tops


def _rank_of(item: tuple[str, int]) -> tuple[int, bytes]:
    return -item[1], item[0].encode()
