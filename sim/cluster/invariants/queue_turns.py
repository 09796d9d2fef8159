"""`FairTurns`: with round robin, nobody who has something leasable waits for more than one turn of each other one (promise: with n active
tenants of equal weight nobody waits for more than n - 1 turns of others per turn of its own).

A tenant's siblings are compared at each level of the tree. Their passes are not looked at, only who was served while who waited. A bound
between two turns of `t`, both without a filter, follows from the rule that the smallest pass is served. `t` had the smallest pass p, and
then p + 1. Another one has at least p, so it has one turn before `t` is next. It may leave and come back in that time: its pass only grows.

1. Who enters waits for at most two turns of each: it gets at least virtual time + 1, and the others have at least virtual time.
2. Each turn that a filter gave `t` out of turn lets it wait for one more turn of each, until its next turn without a filter.
3. Turns that a filter gives to others do not count.

A tenant whose leases are at their limit, that is paused or has used its rate, does not wait. It enters again afterwards.
"""

# ruff: noqa: ANN401 -- hooks stand in for methods of the product

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from raftmq.fsm.queue import leases, partition
from raftmq.fsm.queue.fairness import FairnessTree, Strategy

from sim.core.invariants.violation import demand

Child = tuple[str, str]
"""The path of the parent, and the name below it. Empty: the parent's own messages."""


class Turn(NamedTuple):
    """A lease of messages of one tenant."""

    served: tuple[Child, ...]
    """The tenant and all nodes above it, without the root."""
    turns: int
    is_filtered: bool
    waiting: frozenset[Child]
    """Everything that had something leasable."""


Event = Turn | Child
"""A turn, or a child that has entered the competition with its siblings."""


class _Waiting:
    """A child since its last turn without a filter, or since it entered."""

    def __init__(self) -> None:
        self.turns: Counter[Child] = Counter()
        """The turns of its siblings for which it waited."""
        self.turns_max = 2
        self.filtered = 0
        """Its own turns out of turn."""


class FairTurns:
    """The turns of all queue partitions of a run."""

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        """Group -> the last entry whose turns were checked. Replicas apply the same, so the first one counts."""
        self._waiting: dict[int, dict[Child, _Waiting]] = defaultdict(lambda: defaultdict(_Waiting))
        self.checked = 0
        """The number of turns for which somebody waited."""

    def on_entry(self, group_id: int, index: int, events: list[Event]) -> None:
        """Check the turns of an entry, if it is the next one."""
        if index <= self._applied.get(group_id, 0):
            return
        self._applied[group_id] = index
        known = self._waiting[group_id]
        for event in events:
            if isinstance(event, Turn):
                self._on_turn(group_id, index, known, event)
            else:
                entered = known[event]
                entered.turns.clear()
                entered.turns_max = 2

    def _on_turn(self, group_id: int, index: int, known: dict[Child, _Waiting], turn: Turn) -> None:
        for child in turn.served:
            served = known[child]
            if turn.is_filtered:
                served.filtered += turn.turns
                continue
            served.turns.clear()
            served.turns_max, served.filtered = 1, 0
            for other in sorted(turn.waiting):
                if other[0] == child[0] and other != child:
                    self._on_wait(f"g{group_id} at entry {index}", known[other], other, child, turn.turns)

    def _on_wait(self, where: str, waiting: _Waiting, who: Child, served: Child, count: int) -> None:
        self.checked += 1
        waiting.turns[served] += count
        turns, bound = waiting.turns[served], waiting.turns_max + waiting.filtered
        demand(
            turns <= bound, "FairTurns", f"{where}: {who} waits for {turns} turns of {served}, and {bound} are allowed"
        )


def watch_turns(on_entry: Callable[[int, int, list[Event]], None]) -> Callable[[], None]:
    """Observe the choices of each entry. Return a function that ends it.

    Args:
        on_entry: Called after each entry of a partition with its group (`group_id` of the machine), its index and what happened.
    """
    lease, charge = vars(partition)["lease"], vars(leases)["_charge"]
    finish_entry = partition.QueuePartition._finish_entry
    enter, separate_own = FairnessTree._enter, FairnessTree._separate_own
    entered: dict[int, list[Child]] = {}
    """By tree. A choice may read rows, so entries of several replicas can be half applied."""

    def watched_lease(state: Any, command: Any, work_max: int) -> Any:
        state.is_filtered = bool(command.tenants or command.key)
        return (yield from lease(state, command, work_max))

    def watched_charge(state: Any, tenant: Any, count: int) -> None:
        if state.tenants.tree.settings.strategy is Strategy.ROUND_ROBIN:
            events = _events(state)
            events += entered.pop(id(state.tenants.tree), ())
            events.append(Turn(_chain(state, tenant.number), count, state.is_filtered, _waiting(state)))
        charge(state, tenant, count)

    def watched_finish(self: Any) -> None:
        finish_entry(self)
        events = _events(self.state)
        events += entered.pop(id(self.state.tenants.tree), ())
        self.state.turn_events = []
        if hasattr(self, "group_id"):
            on_entry(self.group_id, self.applied_index, events)

    def watched_enter(self: Any, child: Any, *, is_restored: bool = False) -> None:
        node = child
        while node.parent is not None:
            entered.setdefault(id(self), []).append(_child(node))
            if node.parent.is_active:
                break
            node = node.parent
        enter(self, child, is_restored=is_restored)

    def watched_separation(self: Any, node: Any) -> None:
        separate_own(self, node)
        entered.setdefault(id(self), []).append(_child(node.own))

    changes: tuple[tuple[Any, str, Any, Any], ...] = (
        (partition, "lease", watched_lease, lease),
        (leases, "_charge", watched_charge, charge),
        (partition.QueuePartition, "_finish_entry", watched_finish, finish_entry),
        (FairnessTree, "_enter", watched_enter, enter),
        (FairnessTree, "_separate_own", watched_separation, separate_own),
    )
    for owner, name, value, _ in changes:
        setattr(owner, name, value)

    def undo() -> None:
        for owner, name, _, kept in changes:
            setattr(owner, name, kept)

    return undo


def _events(state: Any) -> list[Event]:
    events: list[Event] = vars(state).setdefault("turn_events", [])
    return events


def _child(node: Any) -> Child:
    return (node.parent.path, node.name)


def _chain(state: Any, number: int) -> tuple[Child, ...]:
    """Return the children that are charged for a turn of a tenant."""
    chain, node = [], state.tenants.tree._tenants[number].leaf
    while node.parent is not None:
        chain.append(_child(node))
        node = node.parent
    return tuple(chain)


def _waiting(state: Any) -> frozenset[Child]:
    """Return everything that has something leasable, according to the tenants and not to their tree."""
    found: set[Child] = set()
    for tenant in state.tenants.by_number.values():
        if tenant.ready and state.tenants.may_lease(tenant, state.scalars.now):
            found.update(_chain(state, tenant.number))
    return frozenset(found)
