"""A change overwrote another one that it had not seen: it named a version of the message, and the message had a later one.

Each change makes the next version. So of two changes that name the same version only one can be done, and the message then has the version
after the named one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sim.history.finding import Finding, finding
from sim.history.queues.book import Book, Changed
from sim.history.queues.operations import ANY_VERSION

ANOMALY = "lost_update"


def find(book: Book) -> Iterator[Finding]:
    """Compare each change that was done in a named version with the other changes of its message."""
    for place, changes in book.changed.items():
        done = [one for one in changes if one.is_done]
        for number, one in enumerate(done):
            why = "" if one.message.expected_version == ANY_VERSION else _overwritten(done, number)
            if why:
                by = f"{one.alteration.process} changed {place} in version {one.message.expected_version}"
                yield finding(ANOMALY, f"{by}, but {why}")


def _overwritten(done: Sequence[Changed], number: int) -> str:
    """Return which other change shows that a change was not done in the version that it named, or an empty text."""
    one = done[number]
    expected, made = one.message.expected_version, one.message.version
    if made not in (0, expected + 1):
        return f"it made version {made}"
    for place, other in enumerate(done):
        who = other.alteration.process
        if place < number and other.message.expected_version == expected:
            return f"{who} had changed it in this version, too"
        if other.message.version > expected and other.alteration.ended < one.alteration.began:
            return f"{who} had made version {other.message.version} before"
    return ""
