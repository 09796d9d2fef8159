"""Regular expressions over topic names that cannot take long: a subset without back-references, matched as an automaton.

A pattern matches whole names. It is compiled to the positions of its characters (Glushkov's construction) and run on sets
of positions, whose transitions are remembered; so matching is linear in the name, whatever the pattern is, where a
backtracking engine takes exponential time for `(a+)+b`.

Invariants: a pattern has at most `POSITIONS_MAX` positions after its counts are written out; names are ASCII.

Source: Glushkov 1961; RE2 (Cox, «Regular Expression Matching Can Be Simple And Fast»).
"""

from __future__ import annotations

from typing import Final

PATTERN_BYTES_MAX: Final = 256
POSITIONS_MAX: Final = 512
ATOMS_MAX: Final = 4096
"""Atoms read, those read anew for each count included: `(((){99}){99}){99}` has no position and would be read for ever."""
DEPTH_MAX: Final = 16
STATES_MAX: Final = 1000
"""Remembered sets of positions; beyond it they are computed anew."""

_EVERY: Final = (1 << 128) - 1


def _mask(characters: str) -> int:
    return sum(1 << ord(character) for character in set(characters))


_DIGITS: Final = _mask("0123456789")
_WORD: Final = _DIGITS | _mask("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE: Final = _mask(" \t\n\r\f\v")
_CLASSES: Final = {
    "d": _DIGITS,
    "D": _EVERY ^ _DIGITS,
    "w": _WORD,
    "W": _EVERY ^ _WORD,
    "s": _SPACE,
    "S": _EVERY ^ _SPACE,
}
_ANY: Final = _EVERY ^ _mask("\n")


class TopicPatternError(ValueError):
    """The pattern is not one of the subset; the message says where."""


class _Part:
    """A piece of the expression: whether it matches nothing, and where it begins and ends (bit sets of positions)."""

    __slots__ = ("first", "is_nullable", "last")

    def __init__(self, first: int, last: int, *, is_nullable: bool) -> None:
        self.first = first
        self.last = last
        self.is_nullable = is_nullable


_NOTHING: Final = _Part(0, 0, is_nullable=True)


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises TopicPatternError."""
        if len(pattern.encode()) > PATTERN_BYTES_MAX or not pattern:
            raise TopicPatternError(f"a pattern has between 1 and {PATTERN_BYTES_MAX} bytes")
        if not pattern.isascii():
            raise TopicPatternError("topics' names are ASCII; so are patterns")
        self._text = pattern
        self._at = 0
        self._characters: list[int] = []
        """Of each position, the characters it takes."""
        self._followers: list[int] = []
        """Of each position, those that may come next."""
        self._atoms = 0
        self._take_if("^")
        whole = self._alternatives(0)
        if self._at < len(pattern):
            raise self._error("unexpected")
        self._first, self._last, self._is_nullable = whole.first, whole.last, whole.is_nullable
        self._steps: dict[tuple[int, int], int] = {}

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        if not name.isascii():
            return False
        if not name:
            return self._is_nullable
        allowed = self._first
        at = 0
        for character in name:
            key = (allowed, ord(character))
            known = self._steps.get(key)
            if known is None:
                known = self._step(*key)
                if len(self._steps) >= STATES_MAX:
                    self._steps.clear()
                self._steps[key] = known
            at = known
            if not at:
                return False
            allowed = self._allowed_after(at)
        return bool(at & self._last)

    def _step(self, allowed: int, character: int) -> int:
        """Those of the allowed positions that take the character."""
        found, bit = 0, 1 << character
        while allowed:
            lowest = allowed & -allowed
            if self._characters[lowest.bit_length() - 1] & bit:
                found |= lowest
            allowed ^= lowest
        return found

    def _allowed_after(self, at: int) -> int:
        key = (at, -1)
        known = self._steps.get(key)
        if known is None:
            known, rest = 0, at
            while rest:
                lowest = rest & -rest
                known |= self._followers[lowest.bit_length() - 1]
                rest ^= lowest
            self._steps[key] = known
        return known

    # ------------------------------------------------------------------------------------------------------------ parsing

    def _error(self, problem: str) -> TopicPatternError:
        return TopicPatternError(f"{problem} at position {self._at} of the pattern {self._text!r}")

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take_if(self, wanted: str) -> bool:
        if self._text.startswith(wanted, self._at):
            self._at += len(wanted)
            return True
        return False

    def _alternatives(self, depth: int) -> _Part:
        part = self._sequence(depth)
        while self._take_if("|"):
            other = self._sequence(depth)
            part = _Part(
                part.first | other.first, part.last | other.last, is_nullable=part.is_nullable or other.is_nullable
            )
        return part

    def _sequence(self, depth: int) -> _Part:
        part = _NOTHING
        while (following := self._peek()) and following not in "|)":
            if following == "$":
                self._at += 1
                if self._at < len(self._text):
                    raise self._error("a $ is only possible at the end, before")
                break
            part = self._then(part, self._repeated(depth))
        return part

    def _then(self, part: _Part, following: _Part) -> _Part:
        self._follow(part.last, following.first)
        return _Part(
            part.first | (following.first if part.is_nullable else 0),
            following.last | (part.last if following.is_nullable else 0),
            is_nullable=part.is_nullable and following.is_nullable,
        )

    def _follow(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self._followers[lowest.bit_length() - 1] |= first
            last ^= lowest

    def _repeated(self, depth: int) -> _Part:
        """An atom and how often it may come. Each time it comes it is read anew, for positions of its own."""
        start = self._at
        part = self._atom(depth)
        end = self._at
        low, high = self._count()
        if (low, high) == (1, 1):
            return part
        self._take_if("?")  # a lazy one matches the same names
        after = self._at
        if self._peek() and self._peek() in "*+?{":
            raise self._error("nothing to repeat")
        if high == 0:
            return _NOTHING
        whole = _NOTHING
        copies = max(low, high if high is not None else 0, 1)
        for number in range(copies):
            if number:
                self._at = start
                part = self._atom(depth)
                assert self._at == end
            if high is None and number == copies - 1:
                self._follow(part.last, part.first)
            is_optional = number >= low
            # an optional copy may also be followed by none of the others: all behind it are optional, too
            part = _Part(part.first, part.last, is_nullable=part.is_nullable or is_optional)
            whole = self._then(whole, part)
        self._at = after
        return whole

    def _count(self) -> tuple[int, int | None]:
        """How often: least and most (None: no bound)."""
        if self._take_if("*"):
            return 0, None
        if self._take_if("+"):
            return 1, None
        if self._take_if("?"):
            return 0, 1
        if not self._take_if("{"):
            return 1, 1
        low = self._number()
        high = low
        if self._take_if(","):
            high = self._number() if self._peek().isdigit() else None
        if not self._take_if("}") or low is None or (high is not None and high < low):
            raise self._error("a count is {m}, {m,} or {m,n}, not what is")
        return low, high

    def _number(self) -> int | None:
        start = self._at
        while self._peek().isdigit():
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            return None
        if len(digits) > 3:
            raise self._error("too large a count")
        return int(digits)

    def _atom(self, depth: int) -> _Part:
        self._atoms += 1
        if self._atoms > ATOMS_MAX:
            raise TopicPatternError("the pattern is too large: its counts multiply")
        character = self._peek()
        if character == "(":
            return self._bracketed(depth + 1)
        self._at += 1
        if character == ".":
            return self._position(_ANY)
        if character == "[":
            return self._position(self._class())
        if character == "\\":
            return self._position(self._escaped())
        if character in "*+?{^":
            self._at -= 1
            raise self._error("nothing to repeat" if character != "^" else "a ^ is only possible at the start, not")
        return self._position(1 << ord(character))

    def _bracketed(self, depth: int) -> _Part:
        if depth > DEPTH_MAX:
            raise self._error("too many brackets inside each other")
        self._at += 1
        if self._take_if("?") and not self._take_if(":"):
            raise self._error("of (?…) only (?:…) is possible, not what is")
        part = self._alternatives(depth)
        if not self._take_if(")"):
            raise self._error("a ) is missing")
        return part

    def _position(self, characters: int) -> _Part:
        if len(self._characters) >= POSITIONS_MAX:
            raise TopicPatternError(
                f"the pattern is too large: more than {POSITIONS_MAX} characters with counts written out"
            )
        bit = 1 << len(self._characters)
        self._characters.append(characters)
        self._followers.append(0)
        return _Part(bit, bit, is_nullable=False)

    def _escaped(self) -> int:
        character = self._peek()
        if not character:
            raise self._error("a backslash escapes nothing")
        self._at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum():
            raise self._error(f"there is no \\{character}")
        return 1 << ord(character)

    def _class(self) -> int:
        is_negated = self._take_if("^")
        found = 0
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._class_item()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_item()
                if low.bit_count() != 1 or high.bit_count() != 1 or high < low:
                    raise self._error("a range goes from a character to a later one")
                low = (high << 1) - low
            found |= low
        self._at += 1
        return _EVERY ^ found if is_negated else found

    def _class_item(self) -> int:
        character = self._peek()
        if not character:
            raise self._error("a ] is missing")
        self._at += 1
        return self._escaped() if character == "\\" else 1 << ord(character)
