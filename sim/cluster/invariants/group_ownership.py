"""`OneOwner`, `FenceHolds`, `CommittedForward`, `SessionKept`: the promises to members of a consumer group (KIP-848). A partition has
one owner whose commits count, a committed offset goes back only by a reset, and a member that sends heartbeats in time stays a member.

They are judged only by the answers to members. Members commit only forward, so after an acknowledged commit nobody may be told a
lower offset.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.core.invariants.violation import demand

Part = tuple[int, int]
SESSION_SECONDS = 4.0
"""Session timeout of the simulated members."""
OVERLAP_SECONDS = 2.5
"""An old coordinator may answer until it notices its successor, which takes up to two election timeouts. The successor does not know of
such an answer: its sessions begin when it takes office.
"""


class GroupOwnership:
    """The answers to members of all consumer groups of a run."""

    def __init__(self, session_seconds: float, clock_rate_max: float) -> None:
        self._silence_min = session_seconds / clock_rate_max
        self._coordinates_since: list[float] = []
        """The times at which a coordinator took office."""
        self._owners: dict[tuple[str, Part, int], str] = {}
        """(group, partition, owner epoch) -> member."""
        self._opened: dict[tuple[str, Part], int] = {}
        """The highest owner epoch under which a member was told that the partition is open to it."""
        self._acknowledged: dict[tuple[str, Part], int] = {}
        """The highest offset whose commit was acknowledged."""
        self._losses: dict[Part, int] = {}
        """Number of recoveries that may have lost commits and owner epochs of a partition."""
        self._heard_at: dict[str, float] = {}
        """Member -> the time at which its last answered heartbeat was sent."""
        self._may_go: dict[str, None] = {}
        """Members that leave, or did not release a partition in time."""
        self.commits = 0
        self.ended_sessions = 0
        """Number of members that were removed while they were silent."""

    def fence(self, group: str, part: Part) -> int:
        """Return the highest owner epoch known to be open. Call it before a commit is sent."""
        return self._opened.get((group, part), 0)

    def floor(self, group: str, part: Part) -> int:
        """Return the highest offset known to be committed, or -1. Call it before a call that reads the offset is sent."""
        return self._acknowledged.get((group, part), -1)

    def losses(self, part: Part) -> int:
        """Return the number of losses in a partition. Call it before a commit is sent."""
        return self._losses.get(part, 0)

    def on_lost(self, part: Part) -> None:
        """Forget the answers about a partition, because a recovery lost the end of its log."""
        self._losses[part] = self.losses(part) + 1
        for known in (self._opened, self._acknowledged):
            for key in [key for key in known if key[1] == part]:
                del known[key]

    def on_assigned(self, group: str, part: Part, owner_epoch: int, member_id: str) -> None:
        """Check the assignment of a partition to a member."""
        first = self._owners.setdefault((group, part, owner_epoch), member_id)
        demand(
            first == member_id,
            "OneOwner",
            f"{part} of {group} under owner epoch {owner_epoch} was given to {first} and to {member_id}",
        )

    def on_opened(self, group: str, part: Part, owner_epoch: int, offset: int, floor: int) -> None:
        """Check the start offset that a member was told. `floor` was valid when it asked."""
        self._check_forward(group, part, offset, floor)
        self._opened[group, part] = max(owner_epoch, self.fence(group, part))

    def on_committed(self, group: str, part: Part, owner_epoch: int, offset: int, fence: int, losses: int) -> None:
        """Check an acknowledged commit. `fence` and `losses` were valid when it was sent."""
        self.commits += 1
        if losses != self.losses(part):
            return
        demand(
            owner_epoch >= fence,
            "FenceHolds",
            f"{part} of {group}: owner epoch {owner_epoch} committed {offset}, {fence} had opened it before",
        )
        self._acknowledged[group, part] = max(offset, self.floor(group, part))

    def on_fetched(self, group: str, part: Part, offset: int, floor: int) -> None:
        """Check a committed offset that was returned to a client."""
        self._check_forward(group, part, offset, floor)

    def on_coordinator(self, now: float) -> None:
        """Record that another broker coordinates."""
        self._coordinates_since.append(now)

    def on_heard(self, member_id: str, sent_at: float) -> None:
        """Record a heartbeat that was answered."""
        self._heard_at[member_id] = sent_at

    def on_may_go(self, member_id: str) -> None:
        """Record that a member leaves, or has held a partition for too long."""
        self._may_go[member_id] = None

    def on_removed(self, member_ids: Iterable[str], now: float) -> None:
        """Check members that the group removes. One that comes back joins again, and does not hear that it was out."""
        for member_id in member_ids:
            if member_id in self._heard_at and member_id not in self._may_go:
                self.on_unknown(member_id, self._heard_at[member_id], now)

    def on_unknown(self, member_id: str, heard_at: float, now: float) -> None:
        """Check that a member that the group does not know has been silent for long enough."""
        self.ended_sessions += 1
        successors = [since for since in self._coordinates_since if heard_at - OVERLAP_SECONDS <= since <= heard_at]
        silent_seconds = now - min(successors, default=heard_at)
        demand(
            silent_seconds >= self._silence_min,
            "SessionKept",
            f"{member_id} is out after {silent_seconds:.2f} s of silence, less than {self._silence_min:.2f} s",
        )

    def _check_forward(self, group: str, part: Part, offset: int, floor: int) -> None:
        floor = min(floor, self.floor(group, part))  # lower after a loss
        demand(
            offset >= floor,
            "CommittedForward",
            f"{part} of {group} is at {offset}, {floor} was committed before",
        )
