"""Maximum flows of minimum cost on small integer networks.

A network is built once and solved once. Costs are not negative. The result is deterministic: edges are tried in the
order in which they were added.

Source: Dinic's algorithm inside the primal-dual method (Ahuja, Magnanti, Orlin: Network Flows, section 9.8).
"""

from __future__ import annotations

import heapq
from typing import Final

UNLIMITED: Final = 1 << 60


class FlowNetwork:
    """Hold a network whose nodes are numbers from 0. `edge ^ 1` is the reverse of an edge: both are neighbours in the
    lists.
    """

    def __init__(self, node_count: int) -> None:
        self._edges_of: list[list[int]] = [[] for _ in range(node_count)]
        self._heads: list[int] = []
        self._residuals: list[int] = []
        self._costs: list[int] = []

    def add_edge(self, tail: int, head: int, capacity: int, cost: int = 0) -> int:
        """Add an edge and return its number."""
        edge = len(self._heads)
        self._edges_of[tail].append(edge)
        self._edges_of[head].append(edge + 1)
        self._heads += (head, tail)
        self._residuals += (capacity, 0)
        self._costs += (cost, -cost)
        return edge

    def flow_of(self, edge: int) -> int:
        """Return the flow through an edge."""
        return self._residuals[edge ^ 1]

    def solve(self, source: int, sink: int) -> int:
        """Push as much flow as possible, as cheaply as possible, and return the amount."""
        potentials = [0] * len(self._edges_of)
        total = 0
        while self._raise_potentials(potentials, source, sink):
            total += self._saturate(potentials, source, sink)
        return total

    def reachable(self, source: int) -> set[int]:
        """Return the nodes that more flow could reach. After `solve` they are the source's side of the smallest minimum
        cut.
        """
        found, stack = {source}, [source]
        while stack:
            for edge in self._edges_of[stack.pop()]:
                head = self._heads[edge]
                if self._residuals[edge] and head not in found:
                    found.add(head)
                    stack.append(head)
        return found

    def _raise_potentials(self, potentials: list[int], source: int, sink: int) -> bool:
        """Add to each potential the distance from the source by reduced costs (Dijkstra). Return False if the sink is
        out of reach.
        """
        distances = [UNLIMITED] * len(potentials)
        distances[source] = 0
        queue = [(0, source)]
        while queue:
            distance, node = heapq.heappop(queue)
            if distance > distances[node]:
                continue
            base = distance + potentials[node]
            for edge in self._edges_of[node]:
                if self._residuals[edge]:
                    head = self._heads[edge]
                    reached = base + self._costs[edge] - potentials[head]
                    if reached < distances[head]:
                        distances[head] = reached
                        heapq.heappush(queue, (reached, head))
        limit = distances[sink]
        if limit == UNLIMITED:
            return False
        for node, distance in enumerate(distances):
            potentials[node] += min(distance, limit)
        return True

    def _saturate(self, potentials: list[int], source: int, sink: int) -> int:
        """Push a maximum flow through edges of reduced cost 0 and return the amount."""
        total = 0
        while True:
            levels = self._levels(potentials, source, sink)
            if levels[sink] < 0:
                return total
            positions = [0] * len(levels)
            while pushed := self._push_path(potentials, levels, positions, source, sink):
                total += pushed

    def _levels(self, potentials: list[int], source: int, sink: int) -> list[int]:
        levels = [-1] * len(potentials)
        levels[source] = 0
        frontier = [source]
        while frontier and levels[sink] < 0:
            following: list[int] = []
            for node in frontier:
                for edge in self._edges_of[node]:
                    head = self._heads[edge]
                    if levels[head] < 0 and self._residuals[edge] and self._is_tight(potentials, node, edge):
                        levels[head] = levels[node] + 1
                        following.append(head)
            frontier = following
        return levels

    def _push_path(self, potentials: list[int], levels: list[int], positions: list[int], source: int, sink: int) -> int:
        """Push along one path of rising levels and return the amount. It does not recurse: paths may have as many edges
        as there are members.
        """
        path: list[int] = []
        node = source
        while node != sink:
            edges = self._edges_of[node]
            while positions[node] < len(edges):
                edge = edges[positions[node]]
                head = self._heads[edge]
                if (
                    self._residuals[edge]
                    and levels[head] == levels[node] + 1
                    and self._is_tight(potentials, node, edge)
                ):
                    path.append(edge)
                    node = head
                    break
                positions[node] += 1
            else:
                if not path:
                    return 0
                node = self._heads[path.pop() ^ 1]
                positions[node] += 1
        pushed = min(self._residuals[edge] for edge in path)
        for edge in path:
            self._residuals[edge] -= pushed
            self._residuals[edge ^ 1] += pushed
        return pushed

    def _is_tight(self, potentials: list[int], node: int, edge: int) -> bool:
        return self._costs[edge] + potentials[node] == potentials[self._heads[edge]]
