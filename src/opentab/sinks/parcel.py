"""One revision of one invoice on its way to a receiver."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is delivered: under the same id and with the same bytes, however often it is tried."""

    period: str
    customer: str
    revision: int
    id: str
    body: bytes
    number: int = 0  # its place in the outbox
    attempts: int = 0


class _Facts(msgspec.Struct, frozen=True):
    period: str
    customer: str
    revision: int
    position: int
    issued_at: str


_DECODER = msgspec.json.Decoder(_Facts)


def parcel_of(statement: str, *, ledger: str) -> Parcel:
    """The parcel of an invoice of a ledger, given as its JSON text.

    The id follows from what is never issued twice: a ledger that was restored may issue the same revision again,
    at another position, and that is another delivery.
    """
    facts = _DECODER.decode(statement)
    named = (ledger, facts.period, facts.customer, facts.revision, facts.position, facts.issued_at)
    digest = hashlib.sha256(msgspec.json.encode(named)).hexdigest()
    return Parcel(facts.period, facts.customer, facts.revision, f"inv_{digest[:32]}", statement.encode())
