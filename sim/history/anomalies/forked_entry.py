"""A forked entry: each of two answers shows an entry that the other one lacks.

One of them is from a state that another one replaced although it did not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.tables import History

NAME: Final = "forked_entry"


def find(history: History) -> Iterator[Finding]:
    """Compare each answer with the next larger one: all of them must be a chain."""
    for name, attempts in sorted(history.entries.items()):
        answered = [(one, one.answer) for one in attempts if one.answer is not None]
        for (one, smaller), (other, larger) in pairwise(sorted(answered, key=lambda pair: len(pair[1]))):
            if not smaller <= larger:
                text = (
                    f"{name}: only {one.process} was shown {', '.join(sorted(smaller - larger))}, and "
                    f"only {other.process} {', '.join(sorted(larger - smaller))}"
                )
                yield finding(NAME, text, one.invoked_at, int(one.ended_at), other.invoked_at, int(other.ended_at))
