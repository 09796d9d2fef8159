"""Placement: hosts take precedence over racks and racks over counts, leaders are spread evenly, and equal input has an equal result."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.fsm import codes
from raftmq.fsm.metadata_views import NodeView
from raftmq.fsm.placement import PlacementError, host_count, place


def node(node_id: int, host: str = "", rack: str = "", state: str = "active") -> NodeView:
    return NodeView(node_id, f"u{node_id}", "", "", "", host or f"h{node_id}", rack, "1", 1, node_id, state)


def replica_counts(plans: tuple[object, ...]) -> Counter[int]:
    return Counter(node_id for plan in plans for node_id in plan.node_ids)  # type: ignore[attr-defined]


@given(nodes=st.integers(1, 12), partitions=st.integers(1, 60), factor=st.integers(1, 7))
def test_counts_differ_by_at_most_one_on_equal_nodes(nodes: int, partitions: int, factor: int) -> None:
    factor = min(factor, nodes)
    plans = place([node(i + 1) for i in range(nodes)], partitions, factor, {})
    assert len(plans) == partitions
    assert all(len(set(plan.node_ids)) == len(plan.node_ids) == factor for plan in plans)
    counts = replica_counts(plans)
    assert max(counts.values()) - min(counts.get(i + 1, 0) for i in range(nodes)) <= 1
    leaders = Counter(plan.node_ids[0] for plan in plans)
    assert max(leaders.values()) - min(leaders.get(i + 1, 0) for i in range(nodes)) <= 1


topologies = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=10)


@settings(max_examples=200)
@given(topology=topologies, partitions=st.integers(1, 20), factor=st.integers(1, 5), data=st.data())
def test_hosts_are_shared_only_when_there_are_too_few(
    topology: list[tuple[int, int]], partitions: int, factor: int, data: st.DataObject
) -> None:
    """A host is in one rack, as in reality. Existing counts are arbitrary and must not justify a shared host."""
    rack_of_host = {host: f"r{rack}" for host, rack in topology}
    nodes = [node(i + 1, f"h{host}", rack_of_host[host]) for i, (host, _) in enumerate(topology)]
    existing = {n.node_id: data.draw(st.integers(0, 50)) for n in nodes}
    factor = min(factor, len(nodes))
    for plan in place(nodes, partitions, factor, existing):
        by_host = Counter(nodes[node_id - 1].host for node_id in plan.node_ids)
        assert len(by_host) == min(factor, len(rack_of_host))


@settings(max_examples=200)
@given(racks=st.integers(1, 4), per_rack=st.integers(1, 4), partitions=st.integers(1, 30), factor=st.integers(1, 5))
def test_racks_are_spread_and_counts_stay_even(racks: int, per_rack: int, partitions: int, factor: int) -> None:
    nodes = [node(i + 1, rack=f"r{i % racks}") for i in range(racks * per_rack)]
    factor = min(factor, len(nodes))
    plans = place(nodes, partitions, factor, {})
    for plan in plans:
        by_rack = Counter(nodes[node_id - 1].rack for node_id in plan.node_ids)
        assert len(by_rack) == min(factor, racks)
        assert max(by_rack.values()) - min(by_rack.values() if len(by_rack) == racks else [1]) <= 1
    counts = replica_counts(plans)
    assert max(counts.values()) - min(counts.get(n.node_id, 0) for n in nodes) <= 1


def test_new_partitions_go_where_few_replicas_are() -> None:
    nodes = [node(i) for i in (1, 2, 3, 4)]
    plans = place(nodes, 10, 1, {1: 10, 2: 10, 3: 10})
    assert replica_counts(plans) == {4: 10}
    leaders = Counter(plan.node_ids[0] for plan in place(nodes[:3], 6, 3, {}, {1: 3, 2: 3}))
    assert leaders == {3: 4, 1: 1, 2: 1}


def test_counts_are_evened_where_several_nodes_share_a_host() -> None:
    """Choosing nodes one by one would lead to 10, 9, 9, 9, 8, 9 here."""
    hosts = ("a", "b", "c", "c", "c", "d")
    plans = place([node(i, host) for i, host in enumerate(hosts, 1)], 27, 2, {})
    assert set(replica_counts(plans).values()) == {9}
    assert all(len({hosts[node_id - 1] for node_id in plan.node_ids}) == 2 for plan in plans)


@given(seed=st.integers(0, 2**32))
def test_the_order_of_nodes_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [node(i + 1, f"h{rng.randint(1, 4)}", f"r{rng.randint(1, 2)}") for i in range(6)]
    expected = place(nodes, 20, 3, {1: 4})
    rng.shuffle(nodes)
    assert place(nodes, 20, 3, {1: 4}) == expected


def test_only_active_nodes_are_used_and_counted() -> None:
    nodes = [node(1), node(2, state="draining"), node(3, state="removed"), node(4, "h1")]
    assert {node_id for plan in place(nodes, 5, 2, {}) for node_id in plan.node_ids} == {1, 4}
    assert host_count(nodes) == 1
    with pytest.raises(PlacementError) as caught:
        place(nodes, 1, 3, {})
    assert caught.value.code == codes.INVALID_REPLICATION_FACTOR
    with pytest.raises(PlacementError):
        place(nodes, 1, 0, {})


@given(
    room=st.dictionaries(st.integers(1, 8), st.integers(0, 6), min_size=1),
    partitions=st.integers(1, 12),
    factor=st.integers(1, 3),
)
def test_no_node_gets_more_replicas_than_its_limit(room: dict[int, int], partitions: int, factor: int) -> None:
    factor = min(factor, len(room))
    existing = {node_id: node_id for node_id in room}
    takes = {node_id: existing[node_id] + free for node_id, free in room.items()}
    nodes = [node(node_id) for node_id in room]
    try:
        plans = place(nodes, partitions, factor, existing, replicas_max=takes)
    except PlacementError as error:
        assert error.code == codes.TOO_MANY_PARTITIONS  # noqa: PT017 -- it need not be raised
        assert any(free < partitions for free in room.values())
    else:
        counts = replica_counts(plans)
        assert all(counts[node_id] <= free for node_id, free in room.items())


def test_full_nodes_are_skipped_while_others_have_room() -> None:
    plans = place([node(n) for n in (1, 2, 3)], 4, 1, {1: 0, 2: 5, 3: 5}, replicas_max={1: 1, 2: 9, 3: 6})
    assert replica_counts(plans) == {1: 1, 2: 2, 3: 1}
    with pytest.raises(PlacementError) as raised:
        place([node(n) for n in (1, 2)], 3, 2, {}, replicas_max={2: 2})
    assert raised.value.code == codes.TOO_MANY_PARTITIONS
