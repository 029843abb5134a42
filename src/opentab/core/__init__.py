"""The vocabulary: money, periods, events, what the journal records, and what can go wrong."""
