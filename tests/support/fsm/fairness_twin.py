"""The choice of tenants again, slow and obvious: everything is recomputed, by linear scans and with fractions."""

from __future__ import annotations

from fractions import Fraction

from raftmq.fsm.queue.fairness import Fairness, HeadKey, Strategy


class SlowFairness:
    """Tenants by path. A child of a node is the path of a tenant, or the node's path with a trailing slash for its own messages."""

    def __init__(self, settings: Fairness) -> None:
        self.settings = settings
        self.tenants = {""}
        self.heads: dict[str, HeadKey] = {}
        self.leased: dict[str, int] = {"": 0}
        self.passed: dict[str, Fraction] = {}
        self.virtual_time: dict[str, Fraction] = {}
        self.active: set[str] = set()

    # the shape of the tree

    def parent(self, child: str) -> str:
        return child[:-1] if child.endswith("/") else child.rpartition(".")[0]

    def children(self, node: str) -> list[str]:
        found = [path for path in self.tenants if path and self.parent(path) == node and path != node]
        return [f"{node}/", *found] if found else []

    def leaf(self, path: str) -> str:
        return f"{path}/" if self.children(path) else path

    def is_within(self, path: str, node: str) -> bool:
        return not node or path == node or path.startswith(f"{node}.")

    def leaves_below(self, child: str) -> list[str]:
        if child.endswith("/"):
            return [child[:-1]]
        return [path for path in self.tenants if self.is_within(path, child)]

    def lineage(self, path: str) -> list[str]:
        """Return the children to charge, from the tenant's leaf up."""
        nodes = [self.leaf(path)]
        while nodes[-1]:
            if nodes[-1].endswith("/"):
                nodes.append(nodes[-1][:-1])
            else:
                nodes.append(self.parent(nodes[-1]))
        return nodes[:-1]

    # tenants that may be leased

    def is_leasable(self, path: str) -> bool:
        limit = self.settings.leased_max
        return path in self.heads and (not limit or self.leased[path] < limit)

    def all_children(self) -> list[str]:
        return [child for path in self.tenants for child in self.children(path)]

    def look(self) -> None:
        """Compare who is active with before: new ones enter."""
        before, self.active = (
            self.active,
            {child for child in self.all_children() if any(map(self.is_leasable, self.leaves_below(child)))},
        )
        if self.settings.strategy is not Strategy.NONE:
            for child in self.active - before:
                usual = self.virtual_time.get(self.parent(child), Fraction(0)) + self.stride(child)
                self.passed[child] = max(self.passed.get(child, Fraction(0)), usual)

    def stride(self, child: str) -> Fraction:
        is_weighted = self.settings.strategy in (Strategy.WEIGHTED, Strategy.QUIET_FIRST)
        path = child
        if child.endswith("/"):
            path = f"{child[:-1]}." if child != "/" else ""
        weight = self.settings.weights.weight_of(path) if is_weighted else 1
        times = 1
        if self.settings.strategy is Strategy.QUIET_FIRST:
            times += sum(self.leased[path] for path in self.leaves_below(child))
        return Fraction(times, weight)

    # events

    def add(self, path: str) -> None:
        self.tenants.add(path)
        self.leased[path] = 0
        self.look()

    def remove(self, path: str) -> None:
        parent = self.parent(path)
        self.tenants.remove(path)
        del self.leased[path]
        self.passed.pop(path, None)
        if not self.children(parent):
            self.passed.pop(f"{parent}/", None)
            self.virtual_time.pop(parent, None)
        self.look()

    def set_leasable(self, path: str, head: HeadKey | None) -> None:
        self.heads.pop(path, None)
        if head is not None:
            self.heads[path] = head
        self.look()

    def free(self, path: str, count: int) -> None:
        self.leased[path] -= count
        self.look()

    def configure(self, settings: Fairness) -> None:
        if (settings.strategy is Strategy.NONE) != (self.settings.strategy is Strategy.NONE):
            self.passed.clear()
            self.virtual_time.clear()
            self.heads.clear()
            self.active.clear()
        self.settings = settings
        self.look()

    def charge(self, path: str, turns: int) -> None:
        for _ in range(turns):
            if self.settings.strategy is not Strategy.NONE:
                for child in self.lineage(path):
                    self.charge_child(child)
            self.leased[path] += 1
        self.look()

    def charge_child(self, child: str) -> None:
        parent = self.parent(child)
        waiting = [self.passed[sibling] for sibling in self.children(parent) if sibling in self.active]
        passed = self.passed.get(child, Fraction(0))
        earliest = min([passed, *waiting])
        self.virtual_time[parent] = max(self.virtual_time.get(parent, Fraction(0)), earliest)
        self.passed[child] = passed + self.stride(child)

    # the choice

    def choose(self, subtrees: list[str] | None) -> str | None:
        allowed = [
            path
            for path in self.tenants
            if self.is_leasable(path)
            and (subtrees is None or any(self.is_within(path, node) for node in subtrees if node in self.tenants))
        ]
        if not allowed:
            return None
        if self.settings.strategy is Strategy.NONE:
            return min(allowed, key=lambda path: self.heads[path])
        node = ""
        while children := self.children(node):
            possible = [child for child in children if set(self.leaves_below(child)) & set(allowed)]
            node = min(possible, key=lambda child: (self.passed[child], "" if child.endswith("/") else child))
            if node.endswith("/"):
                return node[:-1]
        return node
