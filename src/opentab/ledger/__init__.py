"""The ledger: the journal of batches, and the balances drawn from it, as Delta tables."""
