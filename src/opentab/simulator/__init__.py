"""The simulated telecom: events whose bills are known beforehand, and the demo that shows them."""
