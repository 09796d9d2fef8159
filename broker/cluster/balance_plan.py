"""Plan where replicas and preferred leaders should be, with few moves. The functions are pure: the same input gives the same plan.

The wishes, in the order of their weight:

1. no replica on a broker that is being drained, and not more replicas than the topic wants,
2. the replicas of a partition on different hosts, then in different racks,
3. as many replicas on each broker as on any other, within one,
4. as many preferred leaders on each broker as on any other, within one,
5. about as many bytes on each broker as on any other (`BytesEvenness`).

A wish is never met at the cost of an earlier one. A replica moves only if that brings a wish nearer, so a plan for the result of a plan is
empty, and a cluster does not move replicas back and forth. Evenness is sought by single moves. Where racks of different sizes forbid
them, brokers stay uneven.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from raftmq.fsm.metadata_views import NodeView

UNEVEN_BYTES_MIN: Final = 1 << 30
"""A smaller difference between two brokers is never worth a copy."""
UNEVEN_PERCENT: Final = 20
"""Nor is a difference below this share of the mean."""
PASSES_MAX: Final = 20
"""How often a plan looks again for places on brokers that were full, and have room once others are evened. A later plan does the rest."""
SWAPS_MAX: Final = 100
"""Exchanges in one plan, which bounds its time. The next plan goes on."""
TAKERS_MAX: Final = 8
"""Brokers that a plan tries as partners of one that has too many bytes, the emptiest first. It bounds the time, too."""
STUCK_MAX: Final = 10
"""Brokers with too many bytes and no partner, after which a plan evens no more bytes."""
COPY_FACTOR_MAX: Final = 8
"""An exchange copies at most so many times the bytes by which it evens the brokers."""


class Reason(IntEnum):
    """The wish that a change serves, most urgent first."""

    DRAIN = 1
    SURPLUS = 2
    SPREAD = 3
    REPLICAS = 4
    LEADERS = 5
    BYTES = 6


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A partition as a plan sees it."""

    group_id: int
    node_ids: tuple[int, ...]
    """The wanted replicas by broker id. The first is the preferred leader."""
    replication_factor: int
    """The number of replicas that its topic wants."""
    is_fixed: bool = False
    """Whether the partition must stay as it is: it is being moved or repaired, or is not whole. Its replicas count."""
    is_pinned: bool = False
    """Whether an operator placed it: it stays, unless a broker is drained or it has surplus replicas. That ends the pin."""
    barred: frozenset[int] = frozenset()
    """Brokers that must not be given a replica of it now, because a move to them was given up lately."""
    size_bytes: int = 0
    """The coarse size of a replica. 0: small, or not known."""


@dataclass(frozen=True, slots=True)
class Change:
    """New wanted replicas of a partition. Only the order differs if just the preferred leader changes."""

    group_id: int
    node_ids: tuple[int, ...]
    reason: Reason
    """The most urgent wish that it serves."""

    def added(self, before: Iterable[int]) -> tuple[int, ...]:
        """Return the brokers that get a replica, given the brokers that had one."""
        return tuple(sorted(set(self.node_ids).difference(before)))


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """The changes to make, most urgent first, and the replicas for which there is no place."""

    changes: tuple[Change, ...]
    without_place: tuple[int, ...] = ()
    """Groups with a replica on a draining broker that no other broker can take."""


def plan_balance(
    nodes: Sequence[NodeView],
    partitions: Sequence[PlacedPartition],
    replicas_max: Mapping[int, int],
    is_available: Mapping[int, bool],
    *,
    is_automatic: bool = True,
    leaders_only: bool = False,
) -> BalancePlan:
    """Plan the changes that bring a cluster nearer to the wishes.

    Args:
        nodes: The registered brokers.
        partitions: All partitions.
        replicas_max: The number of replicas that a broker accepts, by broker id. A broker without an entry accepts any number.
        is_available: Whether a broker can be given replicas and leaderships now, by broker id. One that is unreachable or rebuilding cannot.
        is_automatic: Whether to seek spread and evenness. Otherwise only drained brokers are emptied and surplus replicas removed.
        leaders_only: Whether to seek evenness of leaderships only.
    """
    layout = _Layout(nodes, partitions, replicas_max, is_available)
    layout.empty_draining()
    layout.remove_surplus()
    if is_automatic and not leaders_only:
        layout.spread()
        layout.even_replicas()
        for _ in range(PASSES_MAX):
            if not layout.empty_draining() and not layout.spread():
                break
            layout.even_replicas()
    layout.choose_leaders(is_automatic=is_automatic)
    if is_automatic and not leaders_only:
        layout.even_bytes()
    return layout.plan()


@dataclass(frozen=True, slots=True)
class BytesEvenness:
    """Decide whether the bytes of brokers are uneven enough to copy data for it, and when they are even enough again.

    Between the two bounds nothing begins, so growth and inexact sizes do not move the same data to and fro.
    """

    begin_bytes: int
    """A larger difference between the fullest and the emptiest broker is evened."""

    @property
    def end_bytes(self) -> int:
        """The difference at which that ends."""
        return self.begin_bytes // 2

    @classmethod
    def of(cls, held_bytes: Iterable[int]) -> BytesEvenness:
        """Return the bounds for brokers that hold these bytes."""
        held = list(held_bytes)
        mean = sum(held) // max(1, len(held))
        return cls(max(UNEVEN_BYTES_MIN, mean * UNEVEN_PERCENT // 100))


class _Layout:
    """The placement while it is planned, with the indexes that keep a step cheap. Takers are brokers that may be given replicas."""

    def __init__(
        self,
        nodes: Sequence[NodeView],
        partitions: Sequence[PlacedPartition],
        replicas_max: Mapping[int, int],
        is_available: Mapping[int, bool],
    ) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._draining = {node.node_id for node in nodes if node.state == "draining"}
        self._takers = sorted(
            node.node_id for node in nodes if node.state == "active" and is_available.get(node.node_id, False)
        )
        self._host_count = len({node.host for node in nodes})
        self._rack_count = len({node.rack for node in nodes})
        self._replicas_max = replicas_max
        self._is_available = is_available
        self._partitions = {partition.group_id: partition for partition in sorted(partitions, key=_group_id)}
        self._places = {group_id: list(partition.node_ids) for group_id, partition in self._partitions.items()}
        self._held: dict[int, dict[int, None]] = {node.node_id: {} for node in nodes}
        """Broker id → groups with a replica there, in a fixed order."""
        for group_id, places in self._places.items():
            for node_id in places:
                self._held.setdefault(node_id, {})[group_id] = None
        self._reasons: dict[int, Reason] = {}
        self._without_place: list[int] = []
        self._crowded = set[int]()
        """Groups that share a host or rack although there are enough. Known while bytes are evened, which leaves them."""
        self._pinned = {partition.group_id for partition in partitions if partition.is_pinned}
        """Groups whose placement is an operator's, and that the plan does not have to change."""
        self._by_barred_racks: defaultdict[int, dict[frozenset[str], dict[int, None]]] = defaultdict(dict)
        """Broker id → racks → groups whose replica there must not move to these racks, so that few partitions are looked at."""
        for group_id in self._places:
            self._index(group_id)

    # ------------------------------------------------------------------------------------------------------------ steps

    def empty_draining(self) -> bool:
        """Move every replica away from the draining brokers, as far as there are places. Return whether any was moved."""
        has_moved = False
        self._without_place.clear()
        for giver in sorted(self._draining):
            for group_id in sorted(self._held[giver]):
                if self._partitions[group_id].is_fixed:
                    continue
                if len(self._places[group_id]) > self._partitions[group_id].replication_factor:
                    self._remove(group_id, giver, Reason.DRAIN)
                    has_moved = True
                    continue
                taker = self._best_taker(group_id, giver)
                if taker is None:
                    self._without_place.append(group_id)
                else:
                    self._move(group_id, giver, taker, Reason.DRAIN)
                    has_moved = True
        return has_moved

    def remove_surplus(self) -> None:
        """Remove replicas that a topic no longer wants: those that are unavailable first, then the most crowded, then those of the fullest broker."""
        for group_id, partition in self._partitions.items():
            while not partition.is_fixed and len(self._places[group_id]) > max(1, partition.replication_factor):
                places = self._places[group_id]
                gone = min(
                    places,
                    key=lambda node_id: (
                        self._is_available.get(node_id, False),
                        self._crowding([other for other in places if other != node_id]),
                        -len(self._held[node_id]),
                        node_id == places[0],
                        -node_id,
                    ),
                )
                self._remove(group_id, gone, Reason.SURPLUS)

    def spread(self) -> bool:
        """Move replicas that share a host or rack although another broker would share less. Return whether any was moved."""
        has_moved = False
        for group_id, partition in self._partitions.items():
            while self._may_move(group_id, partition) and self._spread_one(group_id):
                has_moved = True
        return has_moved

    def _spread_one(self, group_id: int) -> bool:
        places = self._places[group_id]
        present = self._crowding(places)
        if present <= (_least(len(places), self._host_count), _least(len(places), self._rack_count)):
            return False
        best: tuple[tuple[int, int], int, int, int] | None = None
        for giver in places:
            taker = self._best_taker(group_id, giver)
            if taker is None:
                continue
            crowding = self._crowding([taker if node_id == giver else node_id for node_id in places])
            found = (crowding, -len(self._held[giver]), giver, taker)
            if crowding < present and (best is None or found < best):
                best = found
        if best is None:
            return False
        self._move(group_id, best[2], best[3], Reason.SPREAD)
        return True

    def even_replicas(self) -> None:
        """Move replicas from full to emptier brokers until they differ by one, or no move is possible without less spread."""
        by_count = sorted((len(self._held[node_id]), node_id) for node_id in self._takers)
        while (moved := self._even_one(by_count)) is not None:
            for node_id, change in zip(moved, (-1, 1), strict=True):
                count = len(self._held[node_id])
                del by_count[bisect_left(by_count, (count - change, node_id))]
                insort(by_count, (count, node_id))

    def _even_one(self, by_count: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Move one replica. Return its old and its new broker, or None if there is nothing to move."""
        for given, giver in reversed(by_count):
            for taken, taker in by_count:
                if given - taken < 2:
                    break
                group_id = self._movable(giver, taker) if self._has_room(taker) else None
                if group_id is not None:
                    self._move(group_id, giver, taker, Reason.REPLICAS)
                    return giver, taker
        return None

    def _movable(self, giver: int, taker: int) -> int | None:
        """Return a partition that may move from one broker to the other without less spread."""
        rack = self._nodes[taker].rack
        for barred, groups in self._by_barred_racks[giver].items():
            if rack in barred:
                continue
            for group_id in groups:
                places = self._places[group_id]
                if (
                    taker not in places
                    and taker not in self._partitions[group_id].barred
                    and self._is_no_less_spread(places, giver, taker)
                ):
                    return group_id
        return None

    def _may_move(self, group_id: int, partition: PlacedPartition) -> bool:
        """Return whether the partition may be changed for the sake of spread and evenness."""
        return not partition.is_fixed and group_id not in self._pinned

    def _index(self, group_id: int) -> None:
        """Enter the partition's replicas under the racks to which they must not move."""
        if not self._may_move(group_id, self._partitions[group_id]):
            return
        for node_id in self._places[group_id]:
            barred = self._barred_racks(group_id, node_id)
            self._by_barred_racks[node_id].setdefault(barred, {})[group_id] = None

    def _unindex(self, group_id: int) -> None:
        if not self._may_move(group_id, self._partitions[group_id]):
            return
        for node_id in self._places[group_id]:
            barred = self._barred_racks(group_id, node_id)
            groups = self._by_barred_racks[node_id][barred]
            del groups[group_id]
            if not groups:
                del self._by_barred_racks[node_id][barred]

    def _barred_racks(self, group_id: int, giver: int) -> frozenset[str]:
        """Return the racks that hold more of the partition's other replicas than the giver's own rack.

        None are barred while the giver shares its host with another replica: leaving that host counts more.
        """
        own = self._nodes.get(giver)
        others = [
            self._nodes[node_id] for node_id in self._places[group_id] if node_id != giver and node_id in self._nodes
        ]
        if own is None or any(other.host == own.host for other in others):
            return frozenset()
        racks = Counter(other.rack for other in others)
        return frozenset(rack for rack, count in racks.items() if count > racks[own.rack])

    def choose_leaders(self, *, is_automatic: bool) -> None:
        """Put a preferred leader first where the present one has left, and make the numbers even if that is wanted."""
        led: dict[int, dict[int, None]] = {node_id: {} for node_id in self._held}
        orphans: list[int] = []
        for group_id, places in self._places.items():
            if self._reasons.get(group_id) is not None and places[0] != self._partitions[group_id].node_ids[0]:
                orphans.append(group_id)
            else:
                led[places[0]][group_id] = None
        for group_id in orphans:
            places = self._places[group_id]
            leader = min(places, key=lambda node_id: (not self._may_lead(node_id), len(led[node_id]), node_id))
            self._prefer(group_id, leader)
            led[leader][group_id] = None
        if is_automatic:
            self._even_leaders(led)

    def _even_leaders(self, led: dict[int, dict[int, None]]) -> None:
        """Shift preferred leaderships along chains of partitions until no chain makes them more even."""
        while True:
            chain = self._leader_chain(led)
            if not chain:
                return
            for group_id, taker in chain:
                del led[self._places[group_id][0]][group_id]
                led[taker][group_id] = None
                self._prefer(group_id, taker)
                self._note(group_id, Reason.LEADERS)

    def _leader_chain(self, led: Mapping[int, Mapping[int, None]]) -> list[tuple[int, int]]:
        """Return groups with their new leaders, so that the last one leads at least two less than the first one does now."""
        for source in sorted(self._takers, key=lambda node_id: (-len(led[node_id]), node_id)):
            wanted = len(led[source]) - 2
            if wanted < 0 or all(len(led[node_id]) > wanted for node_id in self._takers):
                return []
            arrived_by: dict[int, tuple[int, int]] = {}
            frontier = deque([source])
            while frontier:
                giver = frontier.popleft()
                for group_id in led[giver]:
                    if not self._may_move(group_id, self._partitions[group_id]):
                        continue
                    for taker in self._places[group_id][1:]:
                        if taker == source or taker in arrived_by or not self._may_lead(taker):
                            continue
                        arrived_by[taker] = (group_id, giver)
                        if len(led[taker]) <= wanted:
                            return _trace(arrived_by, source, taker)
                        frontier.append(taker)
        return []

    # ------------------------------------------------------------------------------------------------------------ bytes

    def even_bytes(self) -> None:
        """Exchange replicas between fuller and emptier brokers, so that the numbers of replicas and leaders stay.

        Afterwards a move may be possible that evens replicas, where racks forbade it. The next plan makes it. This ends, because an exchange
        changes no number, and no move makes the numbers less even.
        """
        held = {node_id: sum(map(self._size, self._held[node_id])) for node_id in self._takers}
        if not held:
            return
        bounds = BytesEvenness.of(held.values())
        if max(held.values()) - min(held.values()) <= bounds.begin_bytes:
            return
        self._crowded = {group_id for group_id, places in self._places.items() if not self._is_spread(places)}
        stuck = set[int]()
        for _ in range(SWAPS_MAX):
            least = min(held.values())
            givers = [one for one in held if one not in stuck and held[one] - least > bounds.begin_bytes]
            while givers and len(stuck) < STUCK_MAX:
                giver = max(givers, key=lambda node_id: (held[node_id], -node_id))
                if self._give_bytes(giver, held, bounds.end_bytes):
                    break
                givers.remove(giver)
                stuck.add(giver)
            else:
                return

    def _give_bytes(self, giver: int, held: dict[int, int], end_bytes: int) -> bool:
        """Make one exchange that takes bytes from this broker. Return whether there was one to make."""
        given_by_rack: dict[str, list[tuple[int, int]]] = {}
        tried = 0
        for taker in sorted(held, key=lambda node_id: (held[node_id], node_id)):
            gap = held[giver] - held[taker]
            if gap <= end_bytes or tried == TAKERS_MAX:
                return False
            rack = self._nodes[taker].rack
            if rack not in given_by_rack:
                given_by_rack[rack] = self._exchangeable(giver, rack)
            if not given_by_rack[rack]:
                continue
            tried += 1
            found = self._exchange(giver, taker, gap, given_by_rack[rack])
            if found is not None:
                difference = self._size(found[0]) - self._size(found[1])
                self._swap(giver, taker, *found)
                held[giver] -= difference
                held[taker] += difference
                return True
        return False

    def _exchange(self, giver: int, taker: int, gap: int, given: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Return a group of each broker whose exchange brings their bytes closest together, or the first that halves the gap."""
        taken: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for size, group_id in self._exchangeable(taker, self._nodes[giver].rack):
            taken[self._places[group_id][0] == taker].append((size, group_id))
        best: tuple[int, int, int] | None = None
        for size, group_id in reversed(given):
            if not self._may_take(group_id, giver, taker):
                continue
            # the largest size that is worth the copies is the first bound, and half of the gap the wish
            wish = min(size * (COPY_FACTOR_MAX - 1) // (COPY_FACTOR_MAX + 1), size - gap // 2)
            for other_size, other in self._nearest(
                taken[self._places[group_id][0] == giver], wish, size, gap, taker, giver
            ):
                left = abs(gap - 2 * (size - other_size))
                if best is None or left < best[0]:
                    best = left, group_id, other
            if best is not None and best[0] <= gap // 2:
                break
        return None if best is None else best[1:]

    def _nearest(
        self, sizes: Sequence[tuple[int, int]], wish: int, size: int, gap: int, taker: int, giver: int
    ) -> Iterator[tuple[int, int]]:
        """Return the first group below and above the wished size that may be exchanged for one of `size`."""
        position = bisect_left(sizes, (wish, 0))
        for direction in (range(position, len(sizes)), range(position - 1, -1, -1)):
            for at in direction:
                other_size, other = sizes[at]
                difference = size - other_size
                if not 0 < difference < gap or size + other_size > COPY_FACTOR_MAX * difference:
                    break
                if self._may_take(other, taker, giver):
                    yield other_size, other
                    break

    def _exchangeable(self, node_id: int, rack: str) -> list[tuple[int, int]]:
        """Return the sizes and groups of a broker that may move to a rack and share no host or rack needlessly, smallest first."""
        return sorted(
            (self._size(group_id), group_id)
            for barred, groups in self._by_barred_racks[node_id].items()
            if rack not in barred
            for group_id in groups
            if group_id not in self._crowded
        )

    def _is_spread(self, places: Sequence[int]) -> bool:
        return self._crowding(places) <= (
            _least(len(places), self._host_count),
            _least(len(places), self._rack_count),
        )

    def _may_take(self, group_id: int, giver: int, taker: int) -> bool:
        places = self._places[group_id]
        return (
            taker not in places
            and taker not in self._partitions[group_id].barred
            and self._is_no_less_spread(places, giver, taker)
        )

    def _swap(self, giver: int, taker: int, given: int, taken: int) -> None:
        self._move(given, giver, taker, Reason.BYTES)
        self._move(taken, taker, giver, Reason.BYTES)

    def _size(self, group_id: int) -> int:
        return self._partitions[group_id].size_bytes

    def plan(self) -> BalancePlan:
        """Return the differences from the placement at the beginning."""
        changes = [
            Change(group_id, tuple(self._places[group_id]), reason)
            for group_id, reason in self._reasons.items()
            if tuple(self._places[group_id]) != self._partitions[group_id].node_ids
        ]
        changes.sort(key=lambda change: (change.reason, change.group_id))
        return BalancePlan(tuple(changes), tuple(self._without_place))

    # ------------------------------------------------------------------------------------------------------- arithmetic

    def _may_lead(self, node_id: int) -> bool:
        return node_id in self._takers

    def _has_room(self, node_id: int) -> bool:
        return len(self._held[node_id]) < self._replicas_max.get(node_id, len(self._held[node_id]) + 1)

    def _best_taker(self, group_id: int, giver: int) -> int | None:
        """Return the broker that should hold the giver's replica, by spread first and then by the number of its replicas."""
        others = [node_id for node_id in self._places[group_id] if node_id != giver]
        hosts = Counter(self._nodes[node_id].host for node_id in others if node_id in self._nodes)
        racks = Counter(self._nodes[node_id].rack for node_id in others if node_id in self._nodes)
        barred = self._partitions[group_id].barred
        able = [
            node_id
            for node_id in self._takers
            if node_id not in self._places[group_id] and node_id not in barred and self._has_room(node_id)
        ]
        return min(
            able,
            key=lambda node_id: (
                hosts[self._nodes[node_id].host],
                racks[self._nodes[node_id].rack],
                len(self._held[node_id]),
                node_id,
            ),
            default=None,
        )

    def _crowding(self, places: Iterable[int]) -> tuple[int, int]:
        """Return how much replicas on these brokers share hosts, then racks. Smaller is better."""
        hosts, racks = Counter[str](), Counter[str]()
        for node_id in places:
            node = self._nodes.get(node_id)
            if node is not None:
                hosts[node.host] += 1
                racks[node.rack] += 1
        return sum(count * count for count in hosts.values()), sum(count * count for count in racks.values())

    def _is_no_less_spread(self, places: Iterable[int], giver: int, taker: int) -> bool:
        """Compare how many of the others share a host, then a rack, with the taker and with the giver."""
        old, new = self._nodes[giver], self._nodes[taker]
        hosts = racks = 0
        for node_id in places:
            node = self._nodes.get(node_id)
            if node_id != giver and node is not None:
                hosts += (node.host == new.host) - (node.host == old.host)
                racks += (node.rack == new.rack) - (node.rack == old.rack)
        return (hosts, racks) <= (0, 0)

    # ------------------------------------------------------------------------------------------------------------ moves

    def _move(self, group_id: int, giver: int, taker: int, reason: Reason) -> None:
        places = self._places[group_id]
        self._unindex(group_id)
        self._pinned.discard(group_id)
        places[places.index(giver)] = taker
        self._index(group_id)
        del self._held[giver][group_id]
        self._held[taker][group_id] = None
        self._note(group_id, reason)

    def _remove(self, group_id: int, node_id: int, reason: Reason) -> None:
        self._unindex(group_id)
        self._pinned.discard(group_id)
        self._places[group_id].remove(node_id)
        self._index(group_id)
        del self._held[node_id][group_id]
        self._note(group_id, reason)

    def _note(self, group_id: int, reason: Reason) -> None:
        self._reasons[group_id] = min(reason, self._reasons.get(group_id, reason))

    def _prefer(self, group_id: int, leader: int) -> None:
        places = self._places[group_id]
        places.remove(leader)
        places.insert(0, leader)


def _least(replica_count: int, place_count: int) -> int:
    """Return the least crowding of so many replicas on so many hosts or racks."""
    if not place_count:
        return 0
    each, more = divmod(replica_count, place_count)
    return more * (each + 1) ** 2 + (place_count - more) * each**2


def _group_id(partition: PlacedPartition) -> int:
    return partition.group_id


def _trace(arrived_by: Mapping[int, tuple[int, int]], source: int, target: int) -> list[tuple[int, int]]:
    """Return the steps of a chain from its end, so that each leader gives before it takes."""
    chain: list[tuple[int, int]] = []
    while target != source:
        group_id, giver = arrived_by[target]
        chain.append((group_id, target))
        target = giver
    return chain
