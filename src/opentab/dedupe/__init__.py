"""Deduplication: which events count. An index of sorted runs (an LSM tree) with Bloom filters, and the rule over it."""
