"""Which events count: each key once within its window, reversals once each. Pure, over columns.

The rule is that of ADR 16. Nearly all keys come once and are settled together; the few that repeat in ways that need
their order are walked through one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opentab.core.events import Reason
from opentab.core.periods import Int64s
from opentab.core.records import DID_NOT_COUNT, ClockRestart
from opentab.dedupe.bloom import Probe
from opentab.dedupe.index import RunColumns
from opentab.log.arrivals import NEVER_US, remembered_us
from opentab.wire.hashing import key_of, ordered
from opentab.wire.reference import Event

Bools = npt.NDArray[np.bool_]

COUNTS, DUPLICATE, CONFLICT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Candidates:
    """Events of one batch that have a key or reverse something, as columns."""

    has_key: Bools
    key_high: Int64s
    key_low: Int64s
    payload: Int64s
    arrived_us: Int64s
    partition: npt.NDArray[np.int32]  # its place among the partitions' names in order
    number: Int64s
    byte: Int64s
    reversals: dict[int, tuple[Event, int]]  # by index: the reversal, and the payload that its original must have

    def __len__(self) -> int:
        return len(self.key_high)


@dataclass(frozen=True, slots=True)
class LastCounted:
    """For some keys the last event that counted: NEVER_US where none is known."""

    arrived_us: Int64s
    payload: Int64s
    batch: Int64s

    def at(self, index: int) -> tuple[int, int, int]:
        return int(self.arrived_us[index]), int(self.payload[index]), int(self.batch[index])


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of each event: it counts, is a duplicate, or is rejected, and why."""

    state: npt.NDArray[np.int8]
    first_batch: Int64s  # of a conflict: the batch of the one that counted
    refused: dict[int, Reason]  # reversals that do not count
    order: Int64s  # those with a key, by its first word
    key_high: Int64s  # their keys, in that order
    key_low: Int64s

    @property
    def all_count(self) -> bool:
        return not self.state.any() and not self.refused

    @property
    def any_conflict(self) -> bool:
        return bool((self.state == CONFLICT).any())


def decide(
    candidates: Candidates, known: Sequence[RunColumns], *,
    batch: int, window_us: int, forgotten_us: int | None, restarts: Sequence[ClockRestart] = (),
) -> Outcomes:  # fmt: skip
    """Decide what becomes of each event.

    1. what is known of its key from earlier batches, 2. keys that come once, 3. keys that come again in this batch,
    4. reversals, and whatever shares a key with one, in their order
    """
    count = len(candidates)
    order, high = ordered(candidates.key_high)
    if not candidates.has_key.all():
        has_key = candidates.has_key[order]
        order, high = order[has_key], high[has_key]
    low = candidates.key_low[order]
    last = last_known(high, low, known, forgotten_us=forgotten_us, restarts=restarts)
    state = np.zeros(count, np.int8)
    first_batch = np.full(count, batch, np.int64)
    refused: dict[int, Reason] = {}
    repeats = np.zeros(len(order), np.bool_)
    same = high[1:] == high[:-1]
    repeats[1:] |= same
    repeats[:-1] |= same
    slow = np.zeros(len(order), np.bool_)
    if forgotten_us is not None and len(order):
        # What arrived so long ago is not known even to its own repeats.
        slow |= np.isin(high, high[candidates.arrived_us[order] < forgotten_us])
    if candidates.reversals:
        slow |= np.isin(high, candidates.key_high[[i for i in candidates.reversals if candidates.has_key[i]]])
    once = ~repeats & ~slow & (last.arrived_us != NEVER_US)
    _hold(state, first_batch, candidates, order, last, np.flatnonzero(once), window_us)
    again = np.flatnonzero(repeats & ~slow)
    if len(again):
        slow |= _settle_groups(state, first_batch, candidates, order, last, again, window_us)
    if slow.any() or candidates.reversals:
        walk = _Walk(candidates, known, state, first_batch, refused, batch, window_us, forgotten_us, restarts)
        walk.through(order[slow], {int(order[at]): last.at(at) for at in np.flatnonzero(slow).tolist()})
    return Outcomes(state, first_batch, refused, order, high, low)


def last_known(
    high: Int64s, low: Int64s, known: Iterable[RunColumns], *,
    forgotten_us: int | None, restarts: Sequence[ClockRestart] = (),
) -> LastCounted:  # fmt: skip
    """The last event of each key that counted and is not forgotten; `high` is sorted.

    The last is that of the last batch, and of the latest arrival in it: arrivals may go back at a restart.
    """
    arrived_us = np.full(len(high), NEVER_US, np.int64)
    payload = np.zeros(len(high), np.int64)
    batch = np.zeros(len(high), np.int64)
    words = Probe(high)
    for run in known:
        # Few keys are there at all; several rows may begin with the same word.
        rows = words.may_be_in(run.bloom)
        found = run.key_high.searchsorted(high[rows])
        inside = found < len(run.key_high)
        rows, found = rows[inside], found[inside]
        while len(rows):
            alike = run.key_high.take(found) == high[rows]
            rows, found = rows[alike], found[alike]
            values = run.payload.take(found)
            counted = (run.key_low.take(found) == low[rows]) & (values != DID_NOT_COUNT)
            arrivals, batches = run.arrived_us.take(found), run.batch.take(found)
            same = (batches == batch[rows]) & (arrivals > arrived_us[rows])
            later = counted & ((batches > batch[rows]) | same)
            target = rows[later]
            arrived_us[target] = arrivals[later]
            payload[target] = values[later]
            batch[target] = batches[later]
            found = found + 1
            inside = found < len(run.key_high)
            rows, found = rows[inside], found[inside]
    return LastCounted(remembered_us(arrived_us, batch, restarts, forgotten_us), payload, batch)


def _hold(
    state: npt.NDArray[np.int8],
    first_batch: Int64s,
    candidates: Candidates,
    order: Int64s,
    last: LastCounted,
    at: Int64s,
    window_us: int,
) -> None:
    """Hold events, each alone with its key in this batch, against the last one that counted."""
    rows = order[at]
    within = candidates.arrived_us[rows] - last.arrived_us[at] <= window_us
    rows, at = rows[within], at[within]
    state[rows] = np.where(candidates.payload[rows] == last.payload[at], DUPLICATE, CONFLICT)
    first_batch[rows] = last.batch[at]


def _settle_groups(
    state: npt.NDArray[np.int8],
    first_batch: Int64s,
    candidates: Candidates,
    order: Int64s,
    last: LastCounted,
    again: Int64s,
    window_us: int,
) -> Bools:
    """Settle keys that come more than once in the batch, where all of it lies within one window.

    Returns which places of `order` are left, because the window ends in their midst.
    """
    left = np.zeros(len(order), np.bool_)
    ranked = _ranked(candidates, order[again])
    again, rows = again[ranked], order[again][ranked]
    high, low, arrived_us = candidates.key_high[rows], candidates.key_low[rows], candidates.arrived_us[rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    group = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    latest_us = np.maximum.reduceat(arrived_us, first)
    prior_us = last.arrived_us[again[first]]
    has_prior = prior_us != NEVER_US
    prior_us = np.where(has_prior, prior_us, 0)
    by_prior = has_prior & (latest_us - prior_us <= window_us)
    fresh = ~has_prior | (arrived_us[first] - prior_us > window_us)
    by_first = fresh & (latest_us - arrived_us[first] <= window_us)
    left[again[~(by_prior | by_first)[group]]] = True

    held = by_prior[group]
    state[rows[held]] = np.where(candidates.payload[rows[held]] == last.payload[again[held]], DUPLICATE, CONFLICT)
    first_batch[rows[held]] = last.batch[again[held]]

    others = by_first[group] & ~begins
    winner = candidates.payload[rows[first]][group]
    state[rows[others]] = np.where(candidates.payload[rows[others]] == winner[others], DUPLICATE, CONFLICT)
    return left


def _ranked(candidates: Candidates, rows: Int64s) -> Int64s:
    """The places of rows, which come in the order of their first words, key by key and by arrival and place in each.

    Nearly all come twice: of two, one comparison tells.
    """
    high = candidates.key_high[rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = high[1:] != high[:-1]
    starts = np.flatnonzero(begins)
    one = starts[np.diff(starts, append=len(rows)) == 2]
    swapped = _before(candidates, rows[one + 1], rows[one])
    pairs = np.stack((one + swapped, one + ~swapped), axis=1).reshape(-1)
    if len(pairs) == len(rows):
        return pairs
    rest = np.ones(len(rows), np.bool_)
    rest[pairs] = False
    others = np.flatnonzero(rest)
    by = [getattr(candidates, name)[rows[others]] for name in ("byte", "number", "partition", "arrived_us")]
    keys = [getattr(candidates, name)[rows[others]] for name in ("key_low", "key_high")]
    return np.concatenate((pairs, others[np.lexsort((*by, *keys))]))


def _before(candidates: Candidates, one: Int64s, other: Int64s) -> Bools:
    """Which of some events come before others, by arrival and place."""
    before = candidates.byte[one] < candidates.byte[other]
    for column in (candidates.number, candidates.partition, candidates.arrived_us):
        mine, theirs = column[one], column[other]
        before = (mine < theirs) | ((mine == theirs) & before)
    return before


class _Walk:
    """Goes through events in their order, knowing at each moment what has counted."""

    def __init__(
        self, candidates: Candidates, known: Sequence[RunColumns], state: npt.NDArray[np.int8], first_batch: Int64s,
        refused: dict[int, Reason], batch: int, window_us: int, forgotten_us: int | None,
        restarts: Sequence[ClockRestart],
    ) -> None:  # fmt: skip
        self._candidates = candidates
        self._state = state
        self._first_batch = first_batch
        self._refused = refused
        self._batch = batch
        self._window_us = window_us
        self._forgotten_us = forgotten_us
        self._counted: dict[tuple[int, int], tuple[int, int, int]] = {}  # key: arrival, payload, batch
        self._reversed: set[tuple[int, int]] = set()  # the originals that this batch takes back
        originals = {
            index: key_of(event.reverses or "", event.source) for index, (event, _) in candidates.reversals.items()
        }
        marks = {
            index: key_of(event.reverses or "", event.source, reversal=True)
            for index, (event, _) in candidates.reversals.items()
        }
        self._originals, self._marks = originals, marks
        keys = [*originals.values(), *marks.values()]
        self._known = lookup(keys, known, forgotten_us=forgotten_us, restarts=restarts)

    def through(self, rows: Int64s, lasts: dict[int, tuple[int, int, int]]) -> None:
        """Settle these rows, and all reversals."""
        candidates = self._candidates
        for row in sorted({*rows.tolist(), *candidates.reversals}, key=self._rank):
            if candidates.has_key[row] and self._repeats(row, lasts[row]):
                continue
            if row in candidates.reversals:
                reason = self._why_not(row)
                if reason is not None:
                    self._refused[row] = reason
                    continue
                self._reversed.add(self._originals[row])
            if candidates.has_key[row] and (
                self._forgotten_us is None or candidates.arrived_us[row] >= self._forgotten_us
            ):
                self._counted[self._key(row)] = (
                    int(candidates.arrived_us[row]),
                    int(candidates.payload[row]),
                    self._batch,
                )

    def _rank(self, row: int) -> tuple[int, ...]:
        candidates = self._candidates
        return tuple(
            int(c[row]) for c in (candidates.arrived_us, candidates.partition, candidates.number, candidates.byte)
        )

    def _key(self, row: int) -> tuple[int, int]:
        return int(self._candidates.key_high[row]), int(self._candidates.key_low[row])

    def _repeats(self, row: int, last: tuple[int, int, int]) -> bool:
        arrived_us, payload, batch = self._counted.get(self._key(row), last)
        if arrived_us == NEVER_US or int(self._candidates.arrived_us[row]) - arrived_us > self._window_us:
            return False
        self._state[row] = DUPLICATE if int(self._candidates.payload[row]) == payload else CONFLICT
        self._first_batch[row] = batch
        return True

    def _why_not(self, row: int) -> Reason | None:
        """Why a reversal does not count; None if it does."""
        original = self._originals[row]
        arrived_us, payload, batch = self._known[original]
        if arrived_us == NEVER_US or int(self._candidates.arrived_us[row]) - arrived_us > self._window_us:
            return Reason.REVERSAL_UNKNOWN
        if payload != self._candidates.reversals[row][1]:
            return Reason.REVERSAL_MISMATCH
        marked_us, _, mark_batch = self._known[self._marks[row]]
        twice = original in self._reversed or (marked_us != NEVER_US and mark_batch > batch)
        return Reason.REVERSAL_TWICE if twice else None


def lookup(
    keys: Iterable[tuple[int, int]], known: Iterable[RunColumns], *,
    forgotten_us: int | None, restarts: Sequence[ClockRestart],
) -> dict[tuple[int, int], tuple[int, int, int]]:  # fmt: skip
    """Arrival, payload and batch of the last event of each key that counted."""
    ordered = sorted(set(keys))
    high = np.array([key[0] for key in ordered], np.int64)
    low = np.array([key[1] for key in ordered], np.int64)
    last = last_known(high, low, known, forgotten_us=forgotten_us, restarts=restarts)
    return {key: last.at(at) for at, key in enumerate(ordered)}
