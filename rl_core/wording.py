"""Words for error messages."""

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or the list of known names."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5) if isinstance(name, str) else []
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(names))}" if names else ""


def shown(value: object) -> str:
    """Return a value as an error message shows it: at most 60 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "a number of more than 50 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
