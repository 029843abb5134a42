"""From the log to the journal, on Spark."""
