"""`OneOwner`, `FenceHolds`, `CommittedForward`, `SessionKept`: what members of a consumer group may rely on (KIP-848; promises: a
partition has one owner whose commits count, a committed offset does not go back but by a reset, and a member that speaks up in
time stays one).

Judged by what members were told alone. They commit forward only, so whatever was acknowledged once is the least that anybody
may hear from then on.
"""

from __future__ import annotations

from sim.core.invariants.violation import demand

Part = tuple[int, int]
SESSION_SECONDS = 4.0
"""Of the simulated members."""
SESSION_SLACK_SECONDS = 2.5
"""A coordinator that was succeeded may answer until it notices: so much of a session may be over before its successor is asked."""


class GroupOwnership:
    """All consumer groups of a run."""

    def __init__(self, session_seconds: float, clock_rate_max: float) -> None:
        self._silence_min = session_seconds / clock_rate_max - SESSION_SLACK_SECONDS
        self._owners: dict[tuple[str, Part, int], str] = {}
        """(group, partition, owner epoch) -> member."""
        self._opened: dict[tuple[str, Part], int] = {}
        """The highest owner epoch under which somebody was told that the partition is open to it."""
        self._acknowledged: dict[tuple[str, Part], int] = {}
        """The highest offset whose commit was acknowledged."""
        self.commits = 0

    def fence(self, group: str, part: Part) -> int:
        """The highest owner epoch known to be open: to be asked before a commit is sent."""
        return self._opened.get((group, part), 0)

    def floor(self, group: str, part: Part) -> int:
        """The highest offset known to be committed; -1: none. To be asked before a call that reads it is sent."""
        return self._acknowledged.get((group, part), -1)

    def on_assigned(self, group: str, part: Part, owner_epoch: int, member_id: str) -> None:
        """A member was told that it may have a partition."""
        first = self._owners.setdefault((group, part, owner_epoch), member_id)
        demand(
            first == member_id,
            "OneOwner",
            f"{part} of {group} under owner epoch {owner_epoch} was given to {first} and to {member_id}",
        )

    def on_opened(self, group: str, part: Part, owner_epoch: int, offset: int, floor: int) -> None:
        """A member was told where it begins; `floor` is of when it asked."""
        self._check_forward(group, part, offset, floor)
        self._opened[group, part] = max(owner_epoch, self.fence(group, part))

    def on_committed(self, group: str, part: Part, owner_epoch: int, offset: int, fence: int) -> None:
        """A commit was acknowledged; `fence` is of when it was sent."""
        self.commits += 1
        demand(
            owner_epoch >= fence,
            "FenceHolds",
            f"{part} of {group}: owner epoch {owner_epoch} committed {offset}, {fence} had opened it before",
        )
        self._acknowledged[group, part] = max(offset, self.floor(group, part))

    def on_fetched(self, group: str, part: Part, offset: int, floor: int) -> None:
        """Somebody was told the committed offset."""
        self._check_forward(group, part, offset, floor)

    def on_unknown(self, member_id: str, silent_seconds: float) -> None:
        """A member was told that the group does not know it."""
        demand(
            silent_seconds >= self._silence_min,
            "SessionKept",
            f"{member_id} is out after {silent_seconds:.2f} s of silence, less than {self._silence_min:.2f} s",
        )

    def _check_forward(self, group: str, part: Part, offset: int, floor: int) -> None:
        demand(
            offset >= floor,
            "CommittedForward",
            f"{part} of {group} is at {offset}, {floor} was committed before",
        )
