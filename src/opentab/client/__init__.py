"""A typed client of `opentab serve`, for programs that wait (Client) and for those that do not (AsyncClient).

with Client("http://127.0.0.1:8080", token=…) as tab:
    tab.ingest([{"time": …, "customer": "emma", "type": "CALL", "amount": "0.1250"}])
    print(tab.customer("emma").current.total)
    for totals in tab.live(customer="emma"):
        print(totals.position, totals.totals)
"""

from opentab.api.answers import (
    Adjustment,
    Current,
    Fresh,
    Invoice,
    InvoiceLine,
    Live,
    LiveCustomer,
    LiveTotal,
    LiveTypes,
    OnePeriod,
    OnePeriodTotal,
    PeriodStatus,
    PeriodTotal,
    Receipt,
    TypeTotal,
    Used,
)
from opentab.client.asynchronous import AsyncClient
from opentab.client.errors import ClientError, NotAllowed, NotThere, Unavailable, Unreachable
from opentab.client.ingested import Ingested, Refused
from opentab.client.synchronous import Client

__all__ = [
    "Adjustment",
    "AsyncClient",
    "Client",
    "ClientError",
    "Current",
    "Fresh",
    "Ingested",
    "Invoice",
    "InvoiceLine",
    "Live",
    "LiveCustomer",
    "LiveTotal",
    "LiveTypes",
    "NotAllowed",
    "NotThere",
    "OnePeriod",
    "OnePeriodTotal",
    "PeriodStatus",
    "PeriodTotal",
    "Receipt",
    "Refused",
    "TypeTotal",
    "Unavailable",
    "Unreachable",
    "Used",
]
