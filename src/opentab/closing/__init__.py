"""Closing: what is due, and the invoices of it, as SQL that runs on Spark."""
