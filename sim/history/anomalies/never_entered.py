"""An entry that was never made: an answer shows an entry that nobody had begun to make before the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.tables import NEVER, History

NAME: Final = "never_entered"


def find(history: History) -> Iterator[Finding]:
    """Compare each entry of an answer with the attempt that makes it."""
    for name, attempts in sorted(history.entries.items()):
        begun = {one.member: one.invoked_at for one in attempts if one.member}
        for attempt in attempts:
            for member in sorted(attempt.answer or ()):
                if begun.get(member, NEVER) > attempt.ended_at:
                    text = f"{name}: {attempt.process} was shown {member!r}, and nobody had entered it"
                    yield finding(NAME, text, attempt.invoked_at, int(attempt.ended_at))
