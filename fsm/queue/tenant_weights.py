"""Give each tenant a weight by the first pattern that matches its path.

A pattern has as many levels as the paths that it matches, separated by dots. `*` in a level stands for any characters of
that level, also for none. A weight counts among the children of one parent: `acme` sets the share of everything below `acme`
among the tenants of the first level, and `acme.*` the shares inside `acme`. The messages that `acme` itself has, beside those
of its children, compete as a child with an empty name: `acme.` matches them.

Matching takes time linear in the text for each `*`, because a pattern comes from a user and is evaluated while an entry is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX

WEIGHT_DEFAULT: Final = 1
"""The weight of a tenant that no pattern matches."""
WEIGHT_MAX: Final = 1000
"""Maximum weight. Strides are exact to five millionths up to it (`fairness.STRIDE_SCALE`)."""
PATTERNS_MAX: Final = 64
"""Maximum number of patterns of a topic: a tenant's first turn after a change tries all of them."""


class TenantWeights:
    """Hold the patterns of one topic, in order."""

    __slots__ = ("_by_depth",)

    def __init__(self, patterns: Sequence[tuple[str, int]] = ()) -> None:
        """Take (pattern, weight) pairs that passed `check_weights`."""
        self._by_depth: dict[int, list[tuple[list[str], int]]] = {}
        for pattern, weight in patterns:
            levels = pattern.split(".")
            self._by_depth.setdefault(len(levels), []).append((levels, weight))

    def weight_of(self, path: str) -> int:
        """Return the weight of the first pattern that matches the path, or `WEIGHT_DEFAULT`."""
        levels = path.split(".")
        for pattern, weight in self._by_depth.get(len(levels), ()):
            if all(map(_matches, pattern, levels)):
                return weight
        return WEIGHT_DEFAULT


def check_weights(patterns: Sequence[tuple[str, int]]) -> str:
    """Return why the patterns cannot be a topic's weights, or an empty text. Proposers call it."""
    if len(patterns) > PATTERNS_MAX:
        return f"{len(patterns)} tenant weights are too many: give at most {PATTERNS_MAX}, with '*' for several tenants"
    for pattern, weight in patterns:
        if len(pattern.encode()) > KEY_TEXT_BYTES_MAX:
            return f"the tenant pattern {pattern[:40]!r}... is longer than {KEY_TEXT_BYTES_MAX} bytes"
        if not 1 <= weight <= WEIGHT_MAX:
            return f"the weight {weight} of the tenants {pattern!r} is not within 1 and {WEIGHT_MAX}"
    return ""


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern without dots matches a whole text without dots."""
    first, *parts = pattern.split("*")
    if not parts:
        return first == text
    last = parts.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in parts:  # the leftmost place leaves the most text for the parts that follow
        position = text.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True
