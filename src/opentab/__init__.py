"""opentab: a tab you can read while it is still open."""

__version__ = "0.1.0"
