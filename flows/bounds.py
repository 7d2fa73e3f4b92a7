"""How large and how deep a params.yaml may be. A file beyond it is refused before anything is built from it.

Anchors let a few lines stand for millions of values, and nesting costs the parser more than proportionally. So the
parser's events are counted as they come, each alias for all that it repeats.
"""

from typing import Any

from rl_core.errors import SettingsError

MOST_BYTES = 500_000
_MOST_VALUES = 50_000
_DEEPEST = 20
_LONGEST_WORD = 1_000  # characters without quotes: longer numbers take the parser ever longer


class _Count:
    """Values and levels in one collection, or in one scalar."""

    def __init__(self, anchor: str | None = None) -> None:
        self.anchor = anchor
        self.values, self.levels = 1, 0

    def add(self, inner: "_Count") -> None:
        self.values += inner.values
        self.levels = max(self.levels, inner.levels + 1)


def require_readable(text: str, where: str) -> None:
    """Raise SettingsError for absurd YAML, and ruamel's YAMLError for what is none."""
    from ruamel.yaml import YAML

    open_: list[_Count] = [_Count()]
    anchors: dict[str, _Count] = {}
    for event in YAML(typ="safe", pure=True).parse(text):
        kind = type(event).__name__
        place = f"{where}: line {event.start_mark.line + 1}:"
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            open_.append(_Count(event.anchor))
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            _close(open_, anchors)
        elif kind == "ScalarEvent":
            _scalar(event, open_, anchors, place)
        elif kind == "AliasEvent":
            if any(count.anchor == event.anchor for count in open_):
                raise SettingsError(f"{place} the alias *{event.anchor[:50]} stands within what it repeats")
            open_[-1].add(anchors.get(event.anchor, _Count()))  # an unknown one is the parser's to refuse
        if len(open_) + open_[-1].levels > _DEEPEST:
            raise SettingsError(f"{place} nested more than {_DEEPEST} levels deep")
        if sum(count.values for count in open_) > _MOST_VALUES:
            raise SettingsError(f"{place} more than {_MOST_VALUES} values, aliases counted with what they repeat")


def _close(open_: list[_Count], anchors: dict[str, _Count]) -> None:
    closed = open_.pop()
    open_[-1].add(closed)
    if closed.anchor:
        anchors[closed.anchor] = closed


def _scalar(event: Any, open_: list[_Count], anchors: dict[str, _Count], place: str) -> None:
    if not event.style and len(event.value) > _LONGEST_WORD:
        raise SettingsError(f"{place} a word or number of {len(event.value)} characters; the most is {_LONGEST_WORD}")
    scalar = _Count(event.anchor)
    open_[-1].add(scalar)
    if scalar.anchor:
        anchors[scalar.anchor] = scalar
