"""A task's events as the columns that the rule of deduplication reads, and its outcomes for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opentab.core.events import Reason
from opentab.core.periods import Int64s
from opentab.core.records import SEEN
from opentab.dedupe.rule import CONFLICT, COUNTS, DUPLICATE, Candidates, Outcomes
from opentab.dedupe.sorted_runs import RUN, sorted_run
from opentab.log.line_block import LineBlock
from opentab.wire.decode import Decoded, Identity
from opentab.wire.hashing import key_of, payloads_of
from opentab.wire.reference import Event, Refusal

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]

WHY = {
    Reason.REVERSAL_UNKNOWN: "what it reverses did not count in an earlier batch, or is forgotten",
    Reason.REVERSAL_TWICE: "what it reverses was reversed before",
    Reason.REVERSAL_MISMATCH: "its time, customer, type and amount are not those of what it reverses",
}


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What became of the events of one part."""

    counts: Bools
    refused: Bools
    refusals: list[tuple[int, Refusal]]  # by line
    duplicates: int


class PartitionEvents:
    """Some decoded lines of one partition, with their places."""

    def __init__(self, decoded: Decoded, blocks: list[LineBlock]) -> None:
        assert decoded.identity is not None
        self.decoded = decoded
        self.blocks = blocks
        self.identity: Identity = decoded.identity
        arrived_us, numbers, bytes_at = (
            _joined([getattr(block, name) for block in blocks]) for name in ("arrived_us", "numbers", "bytes_at")
        )
        # Nearly always there is an event in every line.
        line = self.identity.line
        all_lines = len(line) == len(arrived_us) and bool((line[1:] > line[:-1]).all())
        rows: slice | Int64s = slice(None) if all_lines else line
        self.arrived_us, self.number, self.byte = arrived_us[rows], numbers[rows], bytes_at[rows]
        # Only events with a key, and reversals, can be repeats.
        self.is_candidate = self.identity.has_key.copy()
        self.is_candidate[list(self.identity.reversals)] = True
        self.candidate_count = int(self.is_candidate.sum())

    @property
    def partition(self) -> str:
        return self.blocks[0].partition

    def outcome(self, decided: Outcomes, first: int) -> PartitionOutcome:
        """What became of these events; theirs are the ones from `first` on of all candidates."""
        if decided.all_count:
            none = np.zeros(len(self.is_candidate), np.bool_)
            return PartitionOutcome(counts=~none, refused=none, refusals=[], duplicates=0)
        mine = slice(first, first + self.candidate_count)
        state, batch = decided.state[mine], decided.first_batch[mine]
        rows = np.flatnonzero(self.is_candidate)
        if len(rows) < len(self.is_candidate):
            state, batch = _spread(state, rows, len(self.is_candidate)), _spread(batch, rows, len(self.is_candidate))
        why = {int(rows[at - first]): why for at, why in decided.refused.items() if first <= at < first + len(rows)}
        refused = state == CONFLICT
        refused[list(why)] = True
        refusals = [
            (row, self._refusal(row, int(batch[row]), why.get(row))) for row in np.flatnonzero(refused).tolist()
        ]
        return PartitionOutcome(
            counts=(state == COUNTS) & ~refused,
            refused=refused,
            refusals=sorted((int(self.identity.line[row]), refusal) for row, refusal in refusals),
            duplicates=int((state == DUPLICATE).sum()),
        )

    def refused_reversals(self, outcome: PartitionOutcome) -> list[tuple[int, int]]:
        """The keys of reversals that have an id of their own and do not count."""
        rows = [row for row in self.identity.reversals if outcome.refused[row] and self.identity.has_key[row]]
        return [(int(self.identity.key_high[row]), int(self.identity.key_low[row])) for row in rows]

    def _refusal(self, row: int, batch: int, why: Reason | None) -> Refusal:
        if why is not None:
            return Refusal(why, WHY[why])
        return Refusal(
            Reason.CONFLICTING_DUPLICATE, f"the event that counted with this id, in batch {batch}, has other values"
        )


def candidates_of(parts: Sequence[PartitionEvents]) -> Candidates:
    """All events of a task that may be repeats, as columns."""
    ranks = {name: rank for rank, name in enumerate(sorted({one.partition for one in parts}))}
    columns: dict[str, list[Int64s]] = {name: [] for name in ("has_key", "key_high", "key_low", "payload")}
    places: dict[str, list[Int64s]] = {name: [] for name in ("arrived_us", "number", "byte")}
    partition: list[Int32s] = []
    reversals: dict[int, tuple[Event, int]] = {}
    first = 0
    for one in parts:
        rows = slice(None) if one.candidate_count == len(one.is_candidate) else one.is_candidate
        for name, column in columns.items():
            column.append(getattr(one.identity, name)[rows])
        for name, column in places.items():
            column.append(getattr(one, name)[rows])
        partition.append(np.full(one.candidate_count, ranks[one.partition], np.int32))
        if one.identity.reversals:
            at = np.cumsum(one.is_candidate) - 1 + first
            wanted = _payloads_of_originals(one)
            reversals |= {int(at[row]): (event, wanted[row]) for row, event in one.identity.reversals.items()}
        first += one.candidate_count
    joined = {name: _joined(column) for name, column in (columns | places).items()}
    return Candidates(
        has_key=joined["has_key"].astype(np.bool_),
        key_high=joined["key_high"],
        key_low=joined["key_low"],
        payload=joined["payload"],
        arrived_us=joined["arrived_us"],
        partition=np.concatenate(partition) if partition else np.zeros(0, np.int32),
        number=joined["number"],
        byte=joined["byte"],
        reversals=reversals,
    )


def outcomes_of(parts: Sequence[PartitionEvents], decided: Outcomes) -> list[PartitionOutcome]:
    """What became of the events of each part."""
    firsts = accumulate((one.candidate_count for one in parts), initial=0)
    return [one.outcome(decided, first) for one, first in zip(parts, firsts, strict=False)]


def index_rows(
    parts: Sequence[PartitionEvents],
    candidates: Candidates,
    decided: Outcomes,
    outcomes: Sequence[PartitionOutcome],
    *,
    batch: int,
) -> pa.Table:
    """Rows of a run in their order: what counted, and what was rejected and has an id."""
    is_plain = not (decided.refused or candidates.reversals or decided.any_conflict) and len(decided.order) == len(
        candidates
    )
    if not is_plain or any(refusal.id for one in parts for _, refusal in one.decoded.refusals):
        return sorted_run(_seen_rows(parts, outcomes, batch=batch))
    # Nearly always: a row for each that counted, in an order that is known.
    order, high, low = decided.order, decided.key_high, decided.key_low
    if not decided.all_count:
        counts = decided.state[order] == COUNTS
        order, high, low = order[counts], high[counts], low[counts]
    names = pa.array(sorted({one.partition for one in parts}), pa.string())
    name_at = candidates.partition[order] if len(names) > 1 else np.zeros(len(order), np.int32)
    partition = pa.DictionaryArray.from_arrays(name_at, names)
    columns = (candidates.payload, candidates.arrived_us, candidates.number, candidates.byte)
    payload, arrived_us, number, byte = (column.take(order) for column in columns)
    batches = np.full(len(order), batch, np.int64)
    return pa.table([batches, high, low, payload, arrived_us, partition, number, byte], schema=RUN)


def _seen_rows(parts: Sequence[PartitionEvents], outcomes: Sequence[PartitionOutcome], *, batch: int) -> pa.Table:
    """Rows of the schema SEEN: what counted, the marks of reversals, and rejected events that have an id."""
    tables = []
    for one, outcome in zip(parts, outcomes, strict=True):
        identity = one.identity
        rows = np.flatnonzero(outcome.counts & identity.has_key)
        high, low, payload = identity.key_high[rows], identity.key_low[rows], identity.payload[rows]
        marked = [row for row in identity.reversals if outcome.counts[row]]
        events = [identity.reversals[row] for row in marked]
        marks = [key_of(event.reverses or "", event.source, reversal=True) for event in events]
        refused = np.flatnonzero(outcome.refused & identity.has_key)
        places = _joined([rows, _int64s(marked), refused])
        tables.append(
            _table(
                one,
                batch,
                _joined([high, _int64s(mark[0] for mark in marks), identity.key_high[refused]]),
                _joined([low, _int64s(mark[1] for mark in marks), identity.key_low[refused]]),
                _joined([payload, identity.payload[marked], np.zeros(len(refused), np.int64)]),
                one.arrived_us[places],
                one.number[places],
                one.byte[places],
            )
        )
        tables.append(_rejected(one, batch))
    return pa.concat_tables(tables) if tables else SEEN.empty_table()


def _rejected(one: PartitionEvents, batch: int) -> pa.Table:
    """Inputs that were rejected as they were decoded, and that have an id all the same."""
    found = [(line, refusal) for line, refusal in one.decoded.refusals if refusal.id]
    if not found:
        return SEEN.empty_table()
    keys = [key_of(refusal.id or "", refusal.source) for _, refusal in found]
    lines = np.array([line for line, _ in found], np.int64)
    arrived_us, numbers, bytes_at = (
        np.concatenate([getattr(block, name) for block in one.blocks])[lines]
        for name in ("arrived_us", "numbers", "bytes_at")
    )
    high, low = (np.array(words, np.int64) for words in zip(*keys, strict=True))
    return _table(one, batch, high, low, np.zeros(len(found), np.int64), arrived_us, numbers, bytes_at)


def _table(
    one: PartitionEvents,
    batch: int,
    high: Int64s,
    low: Int64s,
    payload: Int64s,
    arrived_us: Int64s,
    number: Int64s,
    byte: Int64s,
) -> pa.Table:
    count = len(high)
    partition = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([one.partition])).cast(pa.string())
    columns = [np.full(count, batch, np.int64), high, low, payload, arrived_us]
    arrays = [pa.array(column) for column in columns]
    places = [pa.array(column) for column in (number, byte)]
    return pa.table([*arrays, partition, *places], schema=SEEN)


def _payloads_of_originals(one: PartitionEvents) -> dict[int, int]:
    """What the payload of the original of each reversal must be."""
    rows = list(one.identity.reversals)
    take = pa.array(rows, pa.int64())
    decoded = one.decoded
    kinds = decoded.type.take(take)
    payloads = payloads_of(
        decoded.at_us[rows],
        -decoded.amount_micros[rows],
        decoded.customer.take(take),
        kinds.dictionary.to_pylist(),
        kinds.indices.to_numpy().astype(np.int64),
    )
    return dict(zip(rows, payloads.tolist(), strict=True))


def _spread(column: npt.NDArray[Any], rows: Int64s, count: int) -> npt.NDArray[Any]:
    """A column of so many rows: some have the values of another one, all others are 0."""
    spread = np.zeros(count, column.dtype)
    spread[rows] = column
    return spread


def _int64s(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, np.int64)


def _joined(columns: Sequence[Int64s]) -> Int64s:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)
