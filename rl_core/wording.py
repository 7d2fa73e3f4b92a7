"""Words for error messages: values as YAML writes them, short whatever was given, and on one line."""

import difflib
from collections.abc import Iterable, Iterator, Mapping

_LONGEST = 60
_LISTED = 8  # so many known names are listed; of more, the nearest few
_DEEPEST = 4
_WORDS = {"None": "null", "True": "true", "False": "false"}


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or the known names, or the nearest few of many."""
    names = sorted(known)
    word = name[:100] if isinstance(name, str) else shown(name)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5) if isinstance(name, str) else []
    if close:
        return f"; did you mean {close[0]!r}?"
    if len(names) > _LISTED:
        few = difflib.get_close_matches(word, names, n=5, cutoff=0.0)
        return f"; the nearest of {len(names)} known: {', '.join(few)}"
    return f"; known: {', '.join(names)}" if names else ""


def shown(value: object) -> str:
    """Return a value as an error message shows it: at most 60 characters, however large or deep it is."""
    text = ""
    for piece in _pieces(value, _DEEPEST):
        text += piece
        if len(text) > _LONGEST:
            return f"{text[: _LONGEST - 3]}..."
    return text


def printable(text: str, longest: int = 200) -> str:
    """Return a stranger's text as one line without control characters, at most `longest` characters."""
    return "".join(c if c.isprintable() else " " for c in text[:longest]).strip()


def _pieces(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, list | tuple | Mapping) and not depth:
        yield "..."
    elif isinstance(value, list | tuple):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(item, depth - 1)
        yield "]"
    elif isinstance(value, Mapping):
        yield "{"
        for i, (key, item) in enumerate(value.items()):
            yield ", " if i else ""
            yield from _pieces(key, depth - 1)
            yield ": "
            yield from _pieces(item, depth - 1)
        yield "}"
    else:
        yield _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return repr(value[: _LONGEST + 1])
    if isinstance(value, int) and abs(value) >= 10**50:
        return "a number of more than 50 digits"
    if value is None or isinstance(value, bool | int | float):
        return _WORDS.get(str(value), str(value))
    return printable(str(value), _LONGEST) if hasattr(value, "isoformat") else "a value of another kind"
