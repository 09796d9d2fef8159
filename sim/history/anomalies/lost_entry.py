"""A lost entry: an answer lacks an entry that must be in it.

It is the entry of the attempt itself, or one that an answer had shown that had ended before the attempt began.

Source: the set workload of Jepsen, whose elements are added one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.tables import Entry, History

NAME: Final = "lost_entry"


def find(history: History) -> Iterator[Finding]:
    """Compare each answer with its attempt, and with the largest answer that had ended before."""
    for name, attempts in sorted(history.entries.items()):
        answered = [one for one in attempts if one.answer is not None]
        ended = sorted(answered, key=lambda one: one.ended_at)
        at = 0
        largest: Entry | None = None
        for attempt in answered:
            answer = attempt.answer or frozenset()
            while ended[at].ended_at < attempt.invoked_at:
                if largest is None or len(ended[at].answer or ()) > len(largest.answer or ()):
                    largest = ended[at]
                at += 1
            if attempt.member and attempt.member not in answer:
                text = f"{name}: {attempt.process} entered {attempt.member!r}, and the answer lacks it"
                yield finding(NAME, text, attempt.invoked_at, int(attempt.ended_at))
            elif largest is not None and (lost := (largest.answer or frozenset()) - answer):
                text = f"{name}: the answer to {attempt.process} lacks {', '.join(sorted(lost))}, which {largest.process} had been shown"
                yield finding(
                    NAME, text, largest.invoked_at, int(largest.ended_at), attempt.invoked_at, int(attempt.ended_at)
                )
