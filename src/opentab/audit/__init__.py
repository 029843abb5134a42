"""The independent judge: the bill recomputed from the raw log with DuckDB, and every cent's origin.

Nothing is shared with the pipeline but the vocabulary (events, records, errors) and the settings.
"""

from opentab.audit.trace import Trace, TracedEvent, TracedLine, trace
from opentab.audit.verify import Check, Journal, Report, verify

__all__ = ["Check", "Journal", "Report", "Trace", "TracedEvent", "TracedLine", "trace", "verify"]
