"""`opentab bench`: chapters that measure real processes from outside, with the audit after every run."""
