"""Money is whole micros; it is rounded once, half even."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from hypothesis import given
from hypothesis import strategies as st

from opentab.core.money import format_micros, format_minor, minor_digits, round_to_minor

micros = st.integers(-(10**24), 10**24)


@given(micros)
def test_micros_are_written_exactly(amount: int) -> None:
    assert Decimal(format_micros(amount)).scaleb(6) == amount


@given(st.one_of(micros, st.integers(-50_000, 50_000)), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_rounding_is_half_even(amount: int, currency: str) -> None:
    step = Decimal(1).scaleb(-minor_digits(currency))
    exact = (Decimal(amount) / 1_000_000).quantize(step, ROUND_HALF_EVEN) if abs(amount) < 10**20 else None
    if exact is not None:
        assert Decimal(format_minor(round_to_minor(amount, currency), currency)) == exact


def test_amounts_as_people_write_them() -> None:
    assert format_micros(-1) == "-0.000001"
    assert format_micros(12_340_000) == "12.340000"
    assert format_minor(-5, "EUR") == "-0.05"
    assert format_minor(1234, "JPY") == "1234"
    assert [round_to_minor(m, "EUR") for m in (5_000, 15_000, -5_000, -15_000)] == [0, 2, 0, -2]
