"""Distinguish a data directory from an older copy of itself that was started, by the marks of its boots.

Each start of a broker counts a boot in its data directory and draws a random mark for it. A running broker does the same
at intervals, so that a boot is never long. The marks of the latest boots are the directory's lineage. A node that remembers one boot and its mark recognizes every directory that does not
descend from it. An older copy has a lower boot, and a copy that was started too has another mark for a boot of the same
number.

One case is not recognized: a copy of the current boot whose original has stopped and never begins another one. It looks like
a restart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MARK_BYTES: Final = 4
LINEAGE_MARKS_MAX: Final = 256
"""Number of boots whose marks are kept, as in the data directory (`storage/registry.py`)."""


class Boot(NamedTuple):
    """The time from a start of a broker, or from a renewal of its mark, to the next, as another node remembers it."""

    number: int
    """Counted from 1; 0 if no boot is known."""
    mark: bytes
    """Random, so that two boots that begin from one copy differ."""


NO_BOOT: Final = Boot(0, b"")


class Lineage(NamedTuple):
    """The current boot of a data directory and the marks of its latest boots."""

    boot: int
    marks: bytes
    """`MARK_BYTES` for each boot, oldest first. The last bytes are the mark of `boot`."""

    @property
    def current(self) -> Boot:
        """The current boot."""
        return Boot(self.boot, self.marks[-MARK_BYTES:])

    def mark_of(self, boot: int) -> bytes | None:
        """Return the mark of an earlier boot, or of this one, or None when it is not kept."""
        end = len(self.marks) - MARK_BYTES * (self.boot - boot)
        return self.marks[end - MARK_BYTES : end] if boot <= self.boot and end >= MARK_BYTES else None

    def defect(self) -> str | None:
        """Return why this is not a valid lineage, or None when it is."""
        wanted = MARK_BYTES * min(self.boot, LINEAGE_MARKS_MAX)
        if self.boot < 1 or len(self.marks) != wanted:
            return f"boot {self.boot} with {len(self.marks)} bytes of marks: {wanted} are expected"
        return None

    def followed_by(self, mark: bytes) -> Lineage:
        """Return the lineage after another boot."""
        marks = self.marks + mark
        return Lineage(self.boot + 1, marks[-MARK_BYTES * LINEAGE_MARKS_MAX :])

    def contradiction(self, known: Boot) -> str | None:
        """Return why this directory does not descend from its known boot, or None when it may."""
        if known == NO_BOOT or known == self.current:
            return None
        if self.boot < known.number:
            return f"it is in boot {self.boot}, and its boot {known.number} has been seen"
        mark = self.mark_of(known.number)
        if mark is not None and mark != known.mark:
            return f"another process has been seen as boot {known.number} of it"
        return None
