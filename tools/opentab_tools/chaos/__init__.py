"""`opentab chaos`: real processes, broken one after the other with load on, and the audit's verdict after each."""
