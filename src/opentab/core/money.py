"""Money is an integer of millionths of the currency unit: `micros`. No float ever holds it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

MICROS_PER_UNIT = 1_000_000
AMOUNT_DIGITS_MAX = 9  # an amount stays below 1,000,000,000 either way
AMOUNT_MICROS_MAX = 10**AMOUNT_DIGITS_MAX * MICROS_PER_UNIT - 1

# Decimals of the minor unit (ISO 4217); every currency that is not named has two.
MINOR_DIGITS = {
    **dict.fromkeys("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split(), 0),
    **dict.fromkeys("BHD IQD JOD KWD LYD OMR TND".split(), 3),
    **dict.fromkeys("CLF UYW".split(), 4),
}

Micros = TypeVar("Micros", int, npt.NDArray[np.int64])


def format_micros(micros: int) -> str:
    """Write micros with all six decimals: 12340000 becomes "12.340000"."""
    digits = str(micros)
    if micros < MICROS_PER_UNIT:  # a sign, or zeros that are not written
        digits = f"{'-' if micros < 0 else ''}{abs(micros):07d}"
    return f"{digits[:-6]}.{digits[-6:]}"


def minor_digits(currency: str) -> int:
    """How many decimals the currency's minor unit has: EUR 2, JPY 0."""
    return MINOR_DIGITS.get(currency, 2)


def round_to_minor(micros: Micros, currency: str) -> Micros:
    """Round micros to the minor unit, half even: one amount or an array of them. An invoice's total
    passes here once."""
    step = int(10 ** (6 - minor_digits(currency)))
    below, rest = divmod(micros, step)
    up = (rest * 2 > step) | ((rest * 2 == step) & (below % 2 == 1))
    return below + up  # type: ignore[no-any-return]


def format_minor(minor: int, currency: str) -> str:
    """Write an amount in minor units: 1234 becomes "12.34" in EUR."""
    digits = minor_digits(currency)
    if digits == 0:
        return str(minor)
    units, rest = divmod(abs(minor), 10**digits)
    return f"{'-' if minor < 0 else ''}{units}.{rest:0{digits}d}"
