"""Choose the tenant whose message is leased next.

Tenants form a tree along the dots of their paths. At each level the next child that has something leasable is chosen by stride
scheduling: each child has a **pass**, the child with the smallest pass is served (ties by name), and each turn adds the child's
stride to its pass. One turn is one message, and a stride is `STRIDE_SCALE` / weight. The **virtual time** of a node is the pass
of the child served last, as it was before that turn. A child that becomes active enters with max(its own pass, virtual time + its
stride): the time in which it had nothing to lease gives it no credit, and a debt is not forgiven. With the strategy `none` the
message with the smallest (priority, due, sequence) is next, for any tenant.

A tenant that also has children (`a` and `a.b`) competes with them: its own messages are a child with an empty name. Only a node
with children has that child, so that a queue without tenants pays nothing for fairness.

A lease that is restricted to subtrees is charged like any other. It then serves a child that is not the next one. Virtual time
therefore never passes the smallest pass of the active children: a tenant that enters next must not wait until the others have
caught up with the turns that a filter gave to one of them.

Must not know messages, times or rates: the state machine says which tenants have something leasable. Invariants: no pass of an
active child is below the virtual time of its parent, virtual time never decreases, and no result depends on the order in which
tenants were loaded or reported, if of those that are reported together the leasable ones come first (`set_leasable`).

Source: Waldspurger, Weihl: Stride Scheduling (1995). Integers instead of floating point, because each replica must choose alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from raftmq.errors import invariant
from raftmq.fsm.queue.tenant_weights import TenantWeights

ROOT_TENANT: Final = 0
"""The number of the tenant without a name, whose path is empty. It always exists."""
STRIDE_SCALE: Final = 232_792_560
"""The stride of weight 1: the least common multiple of 1 to 20, so the strides of these weights are exact. Up to weight 1000 the
rounding shifts a share by less than five millionths."""
SUBTREES_MAX: Final = 16
"""Maximum number of subtrees of a filter. Each level of a filtered choice looks at so many children."""
TENANT_BYTES: Final = 800
"""Upper bound of the memory of a tenant whose path has one level, on average. A node with children has one more for itself."""
_STALE_MAX: Final = 16
"""Outdated entries that a heap may have beyond the number of its active children before they are removed."""

HeadKey = tuple[int, int, int]
"""Priority (a signed 32-bit number), due and sequence of a tenant's next message."""
_NO_HEAD: Final = (0, 0, 0)


class Strategy(Enum):
    """The order among tenants."""

    NONE = "none"
    """Tenants do not count: the smallest (priority, due, sequence) is next."""
    ROUND_ROBIN = "round_robin"
    """Each child of a node has the same share."""
    WEIGHTED = "weighted"
    """Each child has a share in proportion to its weight."""
    QUIET_FIRST = "quiet_first"
    """As weighted, but a turn costs a multiple: one more than the messages that the child has leased."""


class Fairness(NamedTuple):
    """The settings of a topic."""

    strategy: Strategy = Strategy.NONE
    weights: TenantWeights = TenantWeights()
    """Used by `WEIGHTED` and `QUIET_FIRST`."""
    leased_max: int = 0
    """Maximum of messages that one tenant may have leased, children not included. 0 means no limit."""


class TenantTurns(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a tenant's row that belongs to fairness. The numbers have no bound: they are minimal big-endian bytes."""

    passed: bytes = b""
    """The pass among its siblings."""
    own_passed: bytes = b""
    """The pass of its own messages among its children. Empty without children."""
    virtual_time: bytes = b""
    """The virtual time among its children."""
    is_leasable: bool = False
    """Whether it was reported to have something leasable. Always False with the strategy `none`."""


class TenantRow(NamedTuple):
    """A tenant as it is loaded."""

    number: int
    path: str
    turns: TenantTurns
    leased: int
    """Messages leased from this tenant, children not included."""


class _Node:
    """A tenant with everything below it, or the messages that a tenant with children has itself."""

    __slots__ = (
        "active_count",
        "child_count",
        "head",
        "heap",
        "is_active",
        "is_leasable",
        "leased",
        "name",
        "number",
        "order",
        "own",
        "parent",
        "path",
        "stride",
        "stride_version",
        "virtual_time",
    )

    def __init__(self, number: int, name: str, parent: _Node | None) -> None:
        self.number = number
        self.name = name
        """Its last level. Unique among the children of its parent, and empty for a tenant's own messages."""
        self.parent = parent
        self.path: str = name if parent is None or parent.parent is None else f"{parent.path}.{name}"
        self.own: _Node | None = None
        """The child for the tenant's own messages. Invariant: not None exactly while it has other children."""
        self.child_count = 0
        """Children without `own`."""
        self.is_leasable = False
        """Whether the tenant was reported to have something leasable."""
        self.head = 0
        """The reported head, packed into one number. Only with the strategy `none`."""
        self.leased = 0
        """Leased messages, those of its children included."""
        self.is_active = False
        """Whether something here may be chosen. Invariant: with children, exactly while `active_count` is above 0."""
        self.order = 0
        """The key among its siblings, the smallest is next: its pass, or with the strategy `none` its smallest packed head."""
        self.virtual_time = 0
        self.active_count = 0
        self.heap: list[tuple[int, str, _Node]] = []
        """(order, name, child) of each active child, and outdated entries that are skipped. Bounded by `FairnessTree._push`."""
        self.stride = 0
        self.stride_version = 0
        """The version of the settings for which `stride` was computed."""

    @property
    def leaf(self) -> _Node:
        """Return the node that stands for the tenant's own messages."""
        return self.own or self

    def __lt__(self, other: _Node) -> bool:
        """Return False. Only a removed child and its successor have equal order and name, and the removed one is skipped."""
        return False


class FairnessTree:
    """The tenants of one queue partition, all of them in memory: `TENANT_BYTES` each."""

    __slots__ = ("_by_path", "_changed", "_counts_turns", "_root", "_tenants", "_version", "settings")

    def __init__(self, settings: Fairness | None = None) -> None:
        self.settings = settings or Fairness()
        self._counts_turns = self.settings.strategy is not Strategy.NONE
        self._version = 1
        self._root = _Node(ROOT_TENANT, "", None)
        self._tenants: dict[int, _Node] = {ROOT_TENANT: self._root}
        self._by_path: dict[str, _Node] = {"": self._root}
        self._changed: set[int] = set()

    # ---------------------------------------------------------------------------------------------------- tenants

    def __len__(self) -> int:
        return len(self._tenants)

    def __contains__(self, number: int) -> bool:
        return number in self._tenants

    def add(self, number: int, path: str) -> None:
        """Add a tenant that was never served. The tenants of all shorter paths (`ancestors`) must exist already."""
        invariant(number not in self._tenants and path not in self._by_path, "tenant_new", tenant=number, path=path)
        parent_path, _, name = path.rpartition(".")
        parent = self._by_path[parent_path]
        if parent.own is None:
            self._separate_own(parent)
        parent.child_count += 1
        node = _Node(number, name, parent)
        self._tenants[number] = self._by_path[path] = node
        self._changed.add(number)

    def remove(self, number: int) -> None:
        """Remove a tenant that has no children and nothing leased or leasable (`is_forgettable`)."""
        node = self._tenants[number]
        parent = node.parent
        is_unused = node.own is None and not node.is_leasable and not node.leased
        invariant(parent is not None and is_unused, "tenant_unused", tenant=number)
        assert parent is not None
        del self._tenants[number], self._by_path[node.path]
        self._changed.discard(number)
        parent.child_count -= 1
        if not parent.child_count:
            self._merge_own(parent)

    def is_forgettable(self, number: int) -> bool:
        """Return whether the tenant could be removed and added again without any effect on later choices."""
        node = self._tenants[number]
        parent = node.parent
        if parent is None or node.own is not None or node.is_leasable or node.leased:
            return False
        if not self._counts_turns:
            return True
        return self._is_even(node) and (parent.child_count > 1 or self._is_even(parent.leaf))

    def forgettable(self) -> Iterator[int]:
        """Return the tenants that can be forgotten, children before their parents if each is removed as it is returned.

        It looks at every tenant. Call it when the table of tenants is full, not with every entry.
        """
        return (number for number in sorted(self._tenants, reverse=True) if self.is_forgettable(number))

    def _is_even(self, child: _Node) -> bool:
        """Return whether a child has, or would enter with, the pass of a child that was never served."""
        assert child.parent is not None
        of_a_new_child = child.parent.virtual_time + self._stride(child)
        return child.order == of_a_new_child if child.is_active else child.order <= of_a_new_child

    def _separate_own(self, node: _Node) -> None:
        """Let the tenant's own messages compete with its children, from its first child on."""
        own = node.own = _Node(node.number, "", node)
        own.leased = node.leased
        if node.is_active:
            own.is_active, node.active_count = True, 1
            own.order = self._stride(own) if self._counts_turns else node.head
            self._push(node, own)
        self._changed.add(node.number)

    def _merge_own(self, node: _Node) -> None:
        """Undo `_separate_own` when the last child is removed."""
        node.own = None
        node.active_count = node.virtual_time = 0
        node.heap.clear()
        self._changed.add(node.number)

    # ---------------------------------------------------------------------------------------------------- settings

    def configure(self, settings: Fairness) -> bool:
        """Take changed settings, which count from the next turn.

        Returns:
            Whether the caller must report every tenant with something leasable again. This is the case after a change from or to
            `none`, which forgets all passes.
        """
        before, self.settings = self.settings, settings
        self._version += 1
        is_restart = (before.strategy is Strategy.NONE) != (settings.strategy is Strategy.NONE)
        if is_restart:
            self._restart()
        elif before.leased_max != settings.leased_max:
            for node in self._tenants.values():
                self._refresh(node)
        return is_restart

    def _restart(self) -> None:
        """Forget all passes and heads, and with them who is active."""
        self._counts_turns = self.settings.strategy is not Strategy.NONE
        for tenant in self._tenants.values():
            tenant.is_leasable = False
            for node in (tenant, tenant.leaf):
                node.is_active = False
                node.order = node.head = node.virtual_time = node.active_count = 0
                node.heap.clear()
        self._changed.update(self._tenants)

    # ---------------------------------------------------------------------------------------------------- leasable

    def set_leasable(self, number: int, is_leasable: bool, head: HeadKey = _NO_HEAD) -> None:
        """Report whether a tenant has a message that may be leased now, its limit of leased messages aside.

        A parent that is left by its last leasable child loses its place. So when one child comes and another goes in the same
        moment, the one that comes is reported first.

        Args:
            number: the tenant.
            is_leasable: False if it has none, is paused, or has used its rate.
            head: its next message. Only the strategy `none` uses it, and needs each change of it.
        """
        node = self._tenants[number]
        if self._counts_turns:
            if node.is_leasable is is_leasable:
                return  # as after nearly every turn
            self._changed.add(number)
        else:
            node.head = _packed(head)
        node.is_leasable = is_leasable
        self._refresh(node)

    def lease_room(self, number: int) -> int | None:
        """Return how many more messages the tenant may have leased. None means any number."""
        limit = self.settings.leased_max
        return max(0, limit - self._tenants[number].leaf.leased) if limit else None

    def has_children(self, number: int) -> bool:
        """Return whether there are tenants below a tenant."""
        return self._tenants[number].own is not None

    def leased(self, number: int) -> int:
        """Return the number of messages leased from a tenant, children not included."""
        return self._tenants[number].leaf.leased

    def free(self, number: int, count: int = 1) -> None:
        """Return leases of a tenant, however they ended: accepted, released, rejected, expired, cancelled or purged."""
        node = self._tenants[number]
        invariant(count <= node.leaf.leased, "tenant_leased", tenant=number, count=count, leased=node.leaf.leased)
        self._add_leased(node, -count)

    def _add_leased(self, node: _Node, count: int) -> None:
        child: _Node | None = node.leaf
        while child is not None:
            child.leased += count
            child = child.parent
        if self.settings.leased_max:
            self._refresh(node)

    def _refresh(self, node: _Node) -> None:
        """Let a tenant enter or leave, or move it if its head changed."""
        limit = self.settings.leased_max
        leaf = node.leaf
        should_be_active = node.is_leasable and (not limit or leaf.leased < limit)
        has_moved = not self._counts_turns and leaf.order != node.head
        if not self._counts_turns:
            leaf.order = node.head
        if should_be_active and not leaf.is_active:
            self._enter(leaf)
        elif leaf.is_active and not should_be_active:
            self._leave(leaf)
        elif leaf.is_active and has_moved and leaf.parent is not None:
            self._push(leaf.parent, leaf)
            self._lift(leaf.parent)

    def _enter(self, child: _Node, *, is_restored: bool = False) -> None:
        """Make a child active, and each node above it for which it is the first. A restored child keeps its pass."""
        child.is_active = True
        while (parent := child.parent) is not None:
            if self._counts_turns and not is_restored:
                self._changed.add(child.number)
                child.order = max(child.order, parent.virtual_time + self._stride(child))
            parent.active_count += 1
            self._push(parent, child)
            if not self._counts_turns:
                self._lift(parent)
            if parent.is_active:
                return
            parent.is_active = True
            child = parent

    def _leave(self, child: _Node) -> None:
        """Make a child inactive, and each node above it that has no other active child."""
        child.is_active = False
        while (parent := child.parent) is not None:
            parent.active_count -= 1
            if parent.active_count:
                if not self._counts_turns:
                    self._lift(parent)
                return
            parent.heap.clear()
            parent.is_active = False
            child = parent

    def _lift(self, node: _Node) -> None:
        """Bring the smallest head below a node up to every node above it. Only with the strategy `none`."""
        while node.parent is not None:
            smallest = self._next_child(node).order
            if smallest == node.order:
                return
            node.order = smallest
            if not node.is_active:
                return  # it is about to enter
            self._push(node.parent, node)
            node = node.parent

    # ---------------------------------------------------------------------------------------------------- choice

    def has_leasable(self, subtrees: Sequence[str] | None = None) -> bool:
        """Return whether `choose` would find a tenant."""
        return self._root.is_active if subtrees is None else bool(self._targets(subtrees))

    def choose(self, subtrees: Sequence[str] | None = None) -> int | None:
        """Return the tenant whose message is next, or None if nobody has one. It changes nothing.

        Args:
            subtrees: paths, at most `SUBTREES_MAX`. Only these tenants and those below them are considered. None means all.
        """
        node = self._root if subtrees is None else self._start(subtrees)
        if node is None or not node.is_active:
            return None
        while node.own is not None:
            node = self._next_child(node)
        return node.number

    def upcoming(self, count: int, subtrees: Sequence[str] | None = None) -> list[int]:
        """Return up to `count` different tenants that are chosen soon, the next one first. It changes nothing, and is for reading ahead.

        Each level divides its part among its next children, so that the tenants after the first are an estimate.
        """
        found: list[int] = []
        node = self._root if subtrees is None else self._start(subtrees)
        if node is not None:
            self._gather_upcoming(node, count, found)
        return found

    def _gather_upcoming(self, node: _Node, count: int, found: list[int]) -> None:
        if not node.is_active or count <= 0:
            return
        if node.own is None:
            found.append(node.number)
            return
        children = _first_children(node, count)
        end = len(found) + count
        for left, child in zip(range(len(children), 0, -1), children, strict=True):
            self._gather_upcoming(child, -(-(end - len(found)) // left), found)

    def is_only_choice(self, number: int) -> bool:
        """Return whether no other tenant can be chosen. Then `charge` takes many turns together, without a choice between them."""
        node = self._tenants[number].leaf
        while node.is_active and node.parent is not None:
            if node.parent.active_count > 1:
                return False
            node = node.parent
        return node.is_active

    def charge(self, number: int, turns: int = 1) -> None:
        """Charge a tenant for turns, and count the messages as leased until `free`.

        The order of `charge` and a `set_leasable` for the same messages does not matter. More than one turn counts as so many
        choices of this tenant in succession.
        """
        node = self._tenants[number]
        if self._counts_turns:
            child = node.leaf
            while (parent := child.parent) is not None:
                self._advance(parent, child, turns)
                child = parent
        self._add_leased(node, turns)

    def _advance(self, parent: _Node, child: _Node, turns: int) -> None:
        total, last = self._cost(child, turns)
        pass_of_last_turn = child.order + total - last
        child.order += total
        if child.is_active:
            self._push(parent, child)
        virtual_time = pass_of_last_turn
        if parent.active_count:
            following = self._next_child(parent)
            if following is not child:
                virtual_time = min(virtual_time, following.order)
        parent.virtual_time = max(parent.virtual_time, virtual_time)
        self._changed.add(child.number)
        self._changed.add(parent.number)

    def _cost(self, child: _Node, turns: int) -> tuple[int, int]:
        """Return the cost of several turns of a child, and the cost of the last of them."""
        stride = self._base_stride(child)
        if self.settings.strategy is not Strategy.QUIET_FIRST:
            return stride * turns, stride
        # each turn leases one message, so that the next one costs a stride more
        return stride * (turns * (1 + child.leased) + turns * (turns - 1) // 2), stride * (child.leased + turns)

    def _stride(self, child: _Node) -> int:
        """Return the cost of the child's next turn."""
        return self._cost(child, 1)[0]

    def _base_stride(self, child: _Node) -> int:
        if child.stride_version != self._version:
            is_weighted = self.settings.strategy in (Strategy.WEIGHTED, Strategy.QUIET_FIRST)
            weight = self.settings.weights.weight_of(child.path) if is_weighted else 1
            child.stride = STRIDE_SCALE // weight
            child.stride_version = self._version
        return child.stride

    def _targets(self, subtrees: Sequence[str]) -> list[_Node]:
        """Return the roots of the subtrees that have something leasable."""
        found = [self._by_path.get(path) for path in subtrees]
        return [node for node in found if node is not None and node.is_active]

    def _start(self, subtrees: Sequence[str]) -> _Node | None:
        """Return the subtree in which the choice continues without a filter, or None if nothing there is leasable."""
        targets = self._targets(subtrees)
        if not targets or self._root in targets:
            return self._root if targets else None
        if not self._counts_turns:
            return min(targets, key=lambda node: node.order)
        lineages = [_lineage(node) for node in targets]
        depth = 0
        while True:
            chosen = min((lineage[depth] for lineage in lineages), key=lambda node: (node.order, node.name))
            if chosen in targets:
                return chosen
            lineages = [lineage for lineage in lineages if lineage[depth] is chosen]
            depth += 1

    # ---------------------------------------------------------------------------------------------------- heaps

    def _next_child(self, node: _Node) -> _Node:
        """Return the active child with the smallest order. The node has one."""
        heap = node.heap
        while True:
            order, _, child = heap[0]
            if child.is_active and child.order == order:
                return child
            heapq.heappop(heap)

    def _push(self, parent: _Node, child: _Node) -> None:
        """Enter an active child with its present order. An earlier entry of it becomes outdated."""
        heap = parent.heap
        entry = (child.order, child.name, child)
        if heap and heap[0][2] is child:
            heapq.heapreplace(heap, entry)
            return
        heapq.heappush(heap, entry)
        if len(heap) > 2 * parent.active_count + _STALE_MAX:
            current = {entry[1]: entry for entry in heap if entry[2].is_active and entry[2].order == entry[0]}
            heap[:] = current.values()
            heapq.heapify(heap)

    # ---------------------------------------------------------------------------------------------------- rows

    def turns(self, number: int) -> TenantTurns:
        """Return a tenant's part of its row."""
        node = self._tenants[number]
        if not self._counts_turns:
            return TenantTurns()
        own_passed = b"" if node.own is None else _to_bytes(node.own.order)
        return TenantTurns(_to_bytes(node.order), own_passed, _to_bytes(node.virtual_time), node.is_leasable)

    def take_changed(self) -> set[int]:
        """Return the tenants whose `turns` may have changed since the last call, in no particular order."""
        changed, self._changed = self._changed, set()
        return changed

    def load(self, rows: Iterable[TenantRow]) -> None:
        """Load tenants into an empty tree that has the settings under which they were stored.

        With the strategy `none` the caller must then report every tenant with something leasable, because rows have no heads.
        """
        loaded = sorted(rows, key=lambda row: row.path.count(".") if row.path else -1)
        for row in loaded:
            if row.number != ROOT_TENANT:
                self.add(row.number, row.path)
        for row in loaded:
            node = self._tenants[row.number]
            node.order, node.virtual_time = _to_int(row.turns.passed), _to_int(row.turns.virtual_time)
            node.leaf.order = _to_int(row.turns.own_passed) if node.own is not None else node.order
            node.is_leasable = row.turns.is_leasable
            self._load_leased(node, row.leased)
        for row in loaded:
            node = self._tenants[row.number]
            limit = self.settings.leased_max
            if node.is_leasable and (not limit or node.leaf.leased < limit):
                self._enter(node.leaf, is_restored=True)
        self._changed.clear()

    @staticmethod
    def _load_leased(node: _Node, count: int) -> None:
        child: _Node | None = node.leaf
        while child is not None:
            child.leased += count
            child = child.parent


def _first_children(node: _Node, count: int) -> list[_Node]:
    """Return up to `count` active children with the smallest orders, in their order. Outdated entries cost part of a bounded search."""
    heap = node.heap
    found: dict[str, _Node] = {}
    ahead = [(heap[0], 0)] if heap else []
    for _ in range(2 * count + _STALE_MAX):
        if not ahead or len(found) == count:
            break
        (order, name, child), place = heapq.heappop(ahead)
        if child.is_active and child.order == order:
            found[name] = child
        for below in (2 * place + 1, 2 * place + 2):
            if below < len(heap):
                heapq.heappush(ahead, (heap[below], below))
    return list(found.values())


def ancestors(path: str) -> list[str]:
    """Return the paths between the root and a tenant, the longest last: `a` and `a.b` for `a.b.c`."""
    levels = path.split(".")
    return [".".join(levels[:depth]) for depth in range(1, len(levels))]


def _lineage(node: _Node) -> list[_Node]:
    """Return the nodes below the root on the way to a node, which is the last."""
    lineage: list[_Node] = []
    while node.parent is not None:
        lineage.append(node)
        node = node.parent
    lineage.reverse()
    return lineage


def _packed(head: HeadKey) -> int:
    """Pack a head into one number with the same order: priority, due, sequence."""
    priority, due, sequence = head
    return (priority + (1 << 31)) << 128 | due << 64 | sequence


def _to_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _to_int(number: bytes) -> int:
    return int.from_bytes(number, "big")
