"""Names that begin like a text, with capitals or without, in any month.

The names of a month lie sorted by their bytes, where `Emma` and `emma` are far apart. So a text is spelled letter by
letter, and only spellings that some name begins with go on: a few seeks a letter, however many names there are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

SPELLINGS_MAX = 64  # of names that differ in capitals alone, the first ones


def spellings(text: str, *, is_begun: Callable[[str], bool]) -> list[str]:
    """Each way to write a text with capitals or without that some name begins with."""
    found = [""]
    for letter in text:
        ways = sorted({letter, letter.lower(), letter.upper()})
        longer = (begun + way for begun in found for way in ways)
        found = list(islice(filter(is_begun, longer), SPELLINGS_MAX))
    return found
