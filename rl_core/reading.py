"""JSON that somebody else may have written: whole, small and finite, or refused."""

import json
import math
from pathlib import Path

_MOST_BYTES = 10_000_000
_MOST_DIGITS = 300  # so that a whole number fits a float


def parse_json(text: str | bytes) -> object:
    """Parse JSON; raise ValueError for anything else, for numbers that no float can hold and for absurd nesting."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON object from a file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is no file, too large, or holds something else.
    """
    if path.exists() and not path.is_file():
        raise ValueError("is not a file")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"is larger than {_MOST_BYTES // 1_000_000} MB")
    value = parse_json(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("holds no JSON object")  # noqa: TRY004 - whatever is wrong with the file
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
