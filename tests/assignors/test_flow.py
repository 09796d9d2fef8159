"""Flows of minimum cost, compared with a twin that tries every flow, and balance, compared with a twin that tries every assignment."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.assignors.balance import balanced_parts
from raftmq.assignors.flow import FlowNetwork

EDGES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.lists(EDGES.filter(lambda edge: edge[0] != edge[1]), max_size=7))
def test_no_flow_is_larger_or_equally_large_and_cheaper(edges: list[tuple[int, int, int, int]]) -> None:
    network = FlowNetwork(4)
    numbers = [network.add_edge(*edge) for edge in edges]
    total = network.solve(0, 3)
    flows = [network.flow_of(number) for number in numbers]
    balances = [0, 0, 0, 0]
    for (tail, head, capacity, _), flow in zip(edges, flows, strict=True):
        assert 0 <= flow <= capacity
        balances[tail] -= flow
        balances[head] += flow
    assert balances == [-total, 0, 0, total]
    found = (-total, sum(edge[3] * flow for edge, flow in zip(edges, flows, strict=True)))
    assert found == min(_every_flow(edges))


def _every_flow(edges: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    found = []
    for flows in product(*(range(edge[2] + 1) for edge in edges)):
        balances = [0, 0, 0, 0]
        for (tail, head, _, _), flow in zip(edges, flows, strict=True):
            balances[tail] -= flow
            balances[head] += flow
        if balances[1] == balances[2] == 0 <= balances[3]:
            found.append((-balances[3], sum(edge[3] * flow for edge, flow in zip(edges, flows, strict=True))))
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.frozensets(st.integers(0, 2), min_size=1)), max_size=3),
    st.lists(st.integers(1, 2), min_size=3, max_size=3),
)
def test_parts_have_the_most_even_loads(pools: list[tuple[int, frozenset[int]]], class_sizes: list[int]) -> None:
    parts = balanced_parts([size for size, _ in pools], class_sizes, [sorted(row) for _, row in pools])
    loads: list[int] = []
    for part in parts:
        count = sum(class_sizes[number] for number in part.classes)
        loads += [part.base + (position < part.extra) for position in range(count)]
        assert 0 < part.extra <= count
    members = [number for number, size in enumerate(class_sizes) for _ in range(size)]
    loads += [0] * (len(members) - len(loads))
    units = [row for size, row in pools for _ in range(size)]
    best = min(
        tuple(sorted((owners.count(position) for position in range(len(members))), reverse=True))
        for owners in product(
            *([position for position, number in enumerate(members) if number in row] for row in units)
        )
    )
    assert tuple(sorted(loads, reverse=True)) == best
