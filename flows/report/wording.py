"""Numbers and names as a reader sees them."""

import math
from collections.abc import Iterable

MISSING = "—"


def number(value: float | int | None, digits: int = 4) -> str:
    """`value` to so many significant digits, whole thousands kept; a true minus sign; a dash for what is not there."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 10**digits):
        text = f"{int(value):,}"
    elif not 1e-4 <= abs(value) < 1e9:
        return _scientific(value, max(digits - 1, 1) if abs(value) > 1 else max(digits - 2, 1))
    elif abs(value) >= 10 ** (digits - 1):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"
    return text.replace(",", "\u202f").replace("-", "−")


def _scientific(value: float, decimals: int) -> str:
    mantissa, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")


_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number with its unit."""
    text = number(value, digits)
    return f"{text} {unit}" if unit and text != MISSING else text


def join(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}" if listed else ""


def seeds_text(count: int) -> str:
    """`no seed`, `1 seed`, `3 seeds`."""
    return {0: "no seed", 1: "1 seed"}.get(count, f"{count} seeds")
