"""Match regular expressions over topic names in linear time, whatever the pattern is.

RE2 runs a pattern as an automaton. A backtracking engine such as Python's takes exponential time for `(a+)+b`, and clients choose the
patterns.

Source: https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

from typing import Final

import re2

PATTERN_BYTES_MAX: Final = 256
MEMORY_BYTES_MAX: Final = 1024 * 1024
"""Memory of one compiled pattern. RE2 keeps the last 128 that were compiled, so this bounds their memory to 128 MiB."""


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # the positions of the groups are not used
    options.log_errors = False  # to stderr, and clients would choose the amount
    return options


_OPTIONS: Final = _options()


class TopicPatternError(ValueError):
    """Raised for a pattern that RE2 does not accept. The message says why."""


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Compile a pattern. Raises TopicPatternError."""
        if not 1 <= len(pattern.encode()) <= PATTERN_BYTES_MAX:
            raise TopicPatternError(f"a pattern must have between 1 and {PATTERN_BYTES_MAX} bytes")
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except re2.error as error:
            raise TopicPatternError(f"{error.args[0].decode()}, in the pattern {pattern!r}") from None

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the whole name."""
        return self._compiled.fullmatch(name) is not None
