"""An invoice's total in the currency's minor unit, rounded half to even; the audit's own arithmetic."""

from __future__ import annotations

MICRO_DIGITS = 6
# ISO 4217, where it is not two.
DECIMALS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
DECIMALS_BY_CURRENCY = {code: digits for digits, codes in DECIMALS.items() for code in codes.split()}


def minor_micros(currency: str) -> int:
    """How many micros one minor unit is: a cent is 10,000."""
    return int(10 ** (MICRO_DIGITS - DECIMALS_BY_CURRENCY.get(currency, 2)))


def half_even(micros: int, unit: int) -> int:
    """Micros in whole units. The sign is put aside, so that a credit is rounded like a charge."""
    whole, rest = divmod(abs(micros), unit)
    if rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1):
        whole += 1
    return -whole if micros < 0 else whole


def half_even_sql(micros: str, unit: str) -> str:
    """The same over columns of whole numbers, of up to 128 bits."""
    whole, rest = f"(abs({micros}) // {unit})", f"(abs({micros}) % {unit})"
    up = f"CASE WHEN {rest} * 2 > {unit} OR ({rest} * 2 = {unit} AND {whole} % 2 = 1) THEN 1 ELSE 0 END"
    return f"CASE WHEN {micros} < 0 THEN -({whole} + {up}) ELSE {whole} + {up} END"
