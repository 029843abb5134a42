"""What measures and breaks opentab: bench, chaos, its peers, and the real servers they run on. Not in the wheel."""
