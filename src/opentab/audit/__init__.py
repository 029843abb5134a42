"""The independent judge."""
