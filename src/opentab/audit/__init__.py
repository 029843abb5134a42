"""The independent judge: the bill recomputed from the raw log with DuckDB, and every cent's origin.

Nothing is shared with the pipeline but the vocabulary (events, records, errors) and the settings.
"""

from opentab.audit.balances import Balances
from opentab.audit.check import Check
from opentab.audit.invoices import Invoices, NoInvoices
from opentab.audit.trace import Trace, TracedEvent, TracedInvoice, TracedLine, invoice_of, trace
from opentab.audit.verify import Journal, Report, verify

__all__ = [
    "Balances",
    "Check",
    "Invoices",
    "Journal",
    "NoInvoices",
    "Report",
    "Trace",
    "TracedEvent",
    "TracedInvoice",
    "TracedLine",
    "invoice_of",
    "trace",
    "verify",
]
