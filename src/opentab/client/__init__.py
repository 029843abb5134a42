"""A typed client of `opentab serve`, for programs that wait (Client) and for those that do not (AsyncClient).

with Client("http://127.0.0.1:8080", token=…) as tab:
    tab.ingest([{"time": …, "customer": "emma", "type": "CALL", "amount": "0.1250"}])
    print(tab.customer("emma").current.total)
    for totals in tab.live(customer="emma"):
        print(totals.position, totals.totals)
"""

from opentab.client.answers import Current, Fresh, Ingested, Invoice, InvoiceLine, Live, PeriodTotal, Receipt, Refused
from opentab.client.asynchronous import AsyncClient
from opentab.client.errors import ClientError, NotAllowed, NotThere, Unavailable
from opentab.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Current",
    "Fresh",
    "Ingested",
    "Invoice",
    "InvoiceLine",
    "Live",
    "NotAllowed",
    "NotThere",
    "PeriodTotal",
    "Receipt",
    "Refused",
    "Unavailable",
]
