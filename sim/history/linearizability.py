"""Checks whether the operations on one topic can be put in an order that explains every answer and respects real time.

It is a depth-first search over the sets of operations that have taken effect, and remembers each (set, state) that it has visited. An
operation with an unknown outcome may take effect at any time after it began, or never. The search is bounded: after
`CONFIGURATIONS_MAX` configurations the answer is "undecided", which is not a pass. Only `topic_model.py` knows topics.

Source: Wing and Gong 1993. Lowe 2017, "Testing for linearizability" (the memory of configurations). Horn and Kroening 2015
(locality: each key by itself).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

CONFIGURATIONS_MAX: Final = 200_000
"""Maximum number of configurations visited for one key, which takes some seconds. Hundreds of operations, a few of them concurrent, need
thousands. Only many simultaneous unknown outcomes need more."""
OPERATIONS_MAX: Final = 5_000
"""Maximum number of operations on one key, since the table of precedence grows with its square."""

StateT = TypeVar("StateT", bound=Hashable)
OperationT = TypeVar("OperationT")


class Linearizable(Enum):
    """The answer of the search."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Call(Generic[OperationT]):
    """An operation and its place in real time."""

    operation: OperationT
    process: str
    invoked_at: int
    ended_at: float
    """Infinite if the outcome is unknown."""
    is_required: bool
    """Whether the operation took effect, or answered, before it ended. Otherwise it may be left out."""
    is_stale_allowed: bool = False
    """Whether it is a read that may return an old state, but not an older one than its own process was shown."""
    is_shown: bool = True
    """Whether its answer shows its process the state, so that later reads of the process are not older. A refusal does not: it carries no
    revision of the state."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer for one key."""

    answer: Linearizable
    explained: tuple[int, ...] = ()
    """For NO: the longest order that was found and cannot be continued, as positions in `calls`."""
    configuration_count: int = 0


def check_linearizable(
    calls: Sequence[Call[OperationT]],
    initial: StateT,
    step: Callable[[StateT, OperationT], tuple[bool, StateT]],
    configurations_max: int = CONFIGURATIONS_MAX,
) -> Outcome:
    """Search for an order.

    Args:
        calls: The operations, in the order of `invoked_at`.
        initial: The state before all operations.
        step: Returns whether an operation can end as it did in a state, and the state after it.
        configurations_max: Number of configurations after which the search gives up.
    """
    if len(calls) > OPERATIONS_MAX:
        return Outcome(Linearizable.UNDECIDED)
    before = _precedence(calls)
    is_strict = not any(call.is_stale_allowed for call in calls)
    required = sum(1 << at for at, call in enumerate(calls) if call.is_required)
    visited: set[tuple[int, StateT]] = {(0, initial)}
    path: list[int] = []
    longest: tuple[int, ...] = ()
    # One frame for each operation in the order so far: the set of done operations, the state, and the next operation to try.
    frames: list[tuple[int, StateT, int]] = [(0, initial, 0)]
    while frames:
        done, state, trying = frames.pop()
        if done & required == required:
            return Outcome(Linearizable.YES, configuration_count=len(visited))
        has_advanced = False
        for at in range(max(trying, _lowest_missing(done)), len(calls)):
            bit = 1 << at
            if done & bit:
                continue
            if before[at] & ~done:
                if is_strict:
                    break  # operations that began later have even more predecessors
                continue
            is_possible, after = step(state, calls[at].operation)
            configuration = (done | bit, after)
            if not is_possible or configuration in visited:
                continue
            if len(visited) >= configurations_max:
                return Outcome(Linearizable.UNDECIDED, configuration_count=len(visited))
            visited.add(configuration)
            frames.append((done, state, at + 1))
            frames.append((*configuration, 0))
            path.append(at)
            if len(path) > len(longest):
                longest = tuple(path)
            has_advanced = True
            break
        if not has_advanced and path:
            path.pop()
    return Outcome(Linearizable.NO, longest, len(visited))


def _lowest_missing(done: int) -> int:
    """Return the first position that is not in the set."""
    return (~done & (done + 1)).bit_length() - 1


def _precedence(calls: Sequence[Call[OperationT]]) -> list[int]:
    """Return for each call the set, as bits, of the calls that must have taken effect before it.

    These are the calls that ended before it began. For a read that may be stale they are only those that showed its own process a state.
    """
    ended = sorted((call.ended_at, at) for at, call in enumerate(calls) if call.is_required)
    own: dict[str, int] = {}
    before: list[int] = []
    mask = ended_count = 0
    for call in calls:
        while ended_count < len(ended) and ended[ended_count][0] < call.invoked_at:
            at = ended[ended_count][1]
            mask |= 1 << at
            if calls[at].is_shown:
                own[calls[at].process] = own.get(calls[at].process, 0) | 1 << at
            ended_count += 1
        before.append(own.get(call.process, 0) if call.is_stale_allowed else mask)
    return before
