"""The choice of the next tenant (`fsm/queue/fairness.py`), beside its slow twin."""

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftmq.errors import InvariantError
from raftmq.fsm.queue.fairness import (
    ROOT_TENANT,
    TENANT_BYTES,
    Fairness,
    FairnessTree,
    Strategy,
    TenantRow,
    ancestors,
)
from raftmq.fsm.queue.tenant_weights import TenantWeights

from tests.support.fsm.fairness_twin import SlowFairness

PATHS = ["a", "a.b", "a.b.c", "a.c", "ab", "b", "b.a", "b.b", "c"]
SUBTREES = ["", *PATHS, "unknown"]
WEIGHTS = st.lists(
    st.tuples(st.sampled_from(["a", "a.*", "a.", "b", "b.*", "*", "", "*.b", "a.b.*"]), st.integers(1, 20)), max_size=4
)
"""Weights up to 20: their strides are exact in integers."""
SETTINGS = st.builds(Fairness, st.sampled_from(Strategy), WEIGHTS.map(TenantWeights), st.sampled_from([0, 0, 1, 3]))
FILTERS = st.none() | st.lists(st.sampled_from(SUBTREES), max_size=4)
TURN_STRATEGIES = [Strategy.ROUND_ROBIN, Strategy.WEIGHTED, Strategy.QUIET_FIRST]


def tree_of(paths, strategy=Strategy.ROUND_ROBIN, weights=(), leased_max=0, leasable=True):
    """A tree with tenants numbered from 1 in the order of `paths`, each with something leasable."""
    tree = FairnessTree(Fairness(strategy, TenantWeights(weights), leased_max))
    for number, path in enumerate(paths, 1):
        tree.add(number, path)
        tree.set_leasable(number, leasable)
    return tree


def serve(tree, count, subtrees=None):
    """The next `count` turns. Each lease is freed immediately."""
    turns = []
    for _ in range(count):
        number = tree.choose(subtrees)
        tree.charge(number)
        tree.free(number)
        turns.append(number)
    return turns


def rows_of(tree, paths):
    """The stored rows of a tree whose tenants are numbered as `paths`."""
    numbered = [(ROOT_TENANT, ""), *enumerate(paths, 1)]
    return [TenantRow(number, path, tree.turns(number), tree.leased(number)) for number, path in numbered]


def restored(tree, paths, order=None):
    rows = rows_of(tree, paths)
    (order or (lambda _: None))(rows)
    copy = FairnessTree(tree.settings)
    copy.load(rows)
    return copy


class FairnessMachine(RuleBasedStateMachine):
    """Any history: the tree chooses as its twin does, also when it is stored and loaded at any point."""

    @initialize(chosen=SETTINGS)
    def begin(self, chosen):
        self.tree = FairnessTree(chosen)
        self.twin = SlowFairness(chosen)
        self.numbers = {"": ROOT_TENANT}
        self.next_number = 1
        self.sequence = 0

    def path_of(self, number):
        return next(path for path, known in self.numbers.items() if known == number)

    def add(self, path):
        if path not in self.numbers:
            self.numbers[path] = self.next_number
            self.tree.add(self.next_number, path)
            self.twin.add(path)
            self.next_number += 1

    @rule(path=st.sampled_from(["", *PATHS]), priority=st.integers(-(2**31), 2**31 - 1), due=st.integers(0, 3))
    def becomes_leasable(self, path, priority, due):
        for longer in [*ancestors(path), path]:
            self.add(longer)
        self.sequence += 1
        head = (priority, due, self.sequence)
        self.tree.set_leasable(self.numbers[path], True, head)
        self.twin.set_leasable(path, head)

    @rule(data=st.data())
    def has_nothing_leasable(self, data):
        path = data.draw(st.sampled_from(sorted(self.numbers)))
        self.tree.set_leasable(self.numbers[path], False)
        self.twin.set_leasable(path, None)

    @rule(subtrees=FILTERS, turns=st.integers(1, 3))
    def is_served(self, subtrees, turns):
        number = self.tree.choose(subtrees)
        if number is not None:
            path = self.path_of(number)
            self.tree.charge(number, turns)
            self.twin.charge(path, turns)

    @rule(data=st.data(), turns=st.integers(1, 3))
    def is_leased_by_key(self, data, turns):
        """A lease that names a key is charged to its tenant, even if another tenant is next."""
        path = data.draw(st.sampled_from(sorted(self.numbers)))
        self.tree.charge(self.numbers[path], turns)
        self.twin.charge(path, turns)

    @precondition(lambda self: any(self.twin.leased.values()))
    @rule(data=st.data())
    def leases_end(self, data):
        path = data.draw(st.sampled_from(sorted(path for path, count in self.twin.leased.items() if count)))
        count = data.draw(st.integers(1, self.twin.leased[path]))
        self.tree.free(self.numbers[path], count)
        self.twin.free(path, count)

    @rule(chosen=SETTINGS)
    def settings_change(self, chosen):
        is_restart = (chosen.strategy is Strategy.NONE) != (self.tree.settings.strategy is Strategy.NONE)
        assert self.tree.configure(chosen) is is_restart
        self.twin.configure(chosen)

    @rule()
    def forgettable_tenants_are_forgotten(self):
        for number in self.tree.forgettable():
            path = self.path_of(number)
            self.tree.remove(number)
            self.twin.remove(path)
            del self.numbers[path]

    @precondition(lambda self: self.tree.settings.strategy is not Strategy.NONE)
    @rule(order=st.randoms(use_true_random=False))
    def is_stored_and_loaded(self, order):
        rows = [
            TenantRow(number, path, self.tree.turns(number), self.tree.leased(number))
            for path, number in self.numbers.items()
        ]
        order.shuffle(rows)
        loaded = FairnessTree(self.tree.settings)
        loaded.load(rows)
        assert {row.number: loaded.turns(row.number) for row in rows} == {row.number: row.turns for row in rows}
        self.tree = loaded

    @invariant()
    def the_twin_chooses_alike(self):
        if not hasattr(self, "tree"):
            return
        for subtrees in (None, ["a"], ["a.b", "b"], ["a", "a.b", "c"], ["unknown"], []):
            number = self.tree.choose(subtrees)
            assert (None if number is None else self.path_of(number)) == self.twin.choose(subtrees)
            assert self.tree.has_leasable(subtrees) is (number is not None)
        leasable = [path for path in self.numbers if self.twin.is_leasable(path)]
        for path, number in self.numbers.items():
            assert self.tree.is_only_choice(number) is (leasable == [path])

    @invariant()
    def the_tenants_that_come_soon_are_those_that_may_be_chosen(self):
        for subtrees in (None, ["a", "b.b"]):
            assert self.tree.upcoming(0, subtrees) == []
            soon, everyone = (self.tree.upcoming(count, subtrees) for count in (2, 1000))
            first = self.tree.choose(subtrees)
            assert soon[:1] == everyone[:1] == ([] if first is None else [first])
            assert len(set(soon)) == len(soon) <= 2
            assert len(set(everyone)) == len(everyone)
            assert all(self.tree.has_leasable([self.path_of(number)]) for number in everyone)
            if subtrees is None and first is not None:
                assert first in everyone
                assert set(soon) <= set(everyone)

    @invariant()
    def no_active_child_is_behind_virtual_time(self):
        for child in getattr(self, "tree", FairnessTree())._by_path.values():
            for entry in child.heap:
                assert not entry[2].is_active or entry[2].order >= child.virtual_time


TestFairness = FairnessMachine.TestCase
TestFairness.settings = settings(max_examples=90, stateful_step_count=40, deadline=None)


# ---------------------------------------------------------------------------------------------------- shares and bounds


@pytest.mark.parametrize("strategy", TURN_STRATEGIES)
@given(count=st.integers(1, 7), history=st.lists(st.integers(0, 6), max_size=30))
def test_between_two_turns_of_a_tenant_each_other_one_has_at_most_one(strategy, count, history):
    """DESIGN: with n active tenants of equal weight nobody waits for more than n - 1 turns of others."""
    paths = [f"t{number}" for number in range(count)]
    tree = tree_of(paths, strategy)
    for number in history:  # unequal turns before, as a lease by key takes them
        tree.charge(1 + number % count)
        tree.free(1 + number % count)
    serve(tree, 30 * count)  # who was ahead waits until the others have caught up
    turns = serve(tree, 5 * count)
    for number in range(1, count + 1):
        positions = [position for position, turn in enumerate(turns) if turn == number]
        assert positions
        assert max(after - before for before, after in itertools.pairwise([-1, *positions])) <= count


def test_a_thousand_messages_of_one_tenant_do_not_delay_another():
    tree = tree_of(["noisy"])
    serve(tree, 1000)
    tree.add(2, "quiet")
    tree.set_leasable(2, True)
    assert 2 in serve(tree, 2)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.integers(1, 400))
def test_weighted_shares_are_within_one_round_of_exact(weights, count):
    """One turn more or less than the exact share for each level of rounding."""
    paths = [f"t{number}" for number in range(len(weights))]
    tree = tree_of(paths, Strategy.WEIGHTED, list(zip(paths, weights, strict=True)))
    turns = serve(tree, count)
    for number, weight in enumerate(weights, 1):
        exact = count * weight / sum(weights)
        assert abs(turns.count(number) - exact) <= len(weights)


def test_a_weight_of_one_in_a_hundred_is_not_rounded_to_nothing():
    """Defect B6 of an ancestor: small shares were cut to zero."""
    tree = tree_of(["a", "b"], Strategy.WEIGHTED, [("a", 99)])
    assert serve(tree, 1000).count(2) == 10


def test_a_level_is_shared_among_its_children_and_not_among_their_tenants():
    tree = tree_of(["a", "b", "b.x", "b.y"])
    tree.set_leasable(2, False)
    turns = serve(tree, 400)
    assert [turns.count(number) for number in (1, 2, 3, 4)] == [200, 0, 100, 100]


def test_a_tenant_that_is_also_a_prefix_keeps_being_served():
    """Defect B12 of an ancestor: the messages of `a` were stranded beside those of `a.b`."""
    tree = tree_of(["a", "a.b", "a.c"])
    turns = serve(tree, 300)
    assert [turns.count(number) for number in (1, 2, 3)] == [100, 100, 100]


def test_messages_without_a_tenant_compete_with_those_of_tenants():
    tree = tree_of(["a", "b"])
    tree.set_leasable(ROOT_TENANT, True)
    turns = serve(tree, 30)
    assert [turns.count(number) for number in (0, 1, 2)] == [10, 10, 10]


@pytest.mark.parametrize("others", [1, 3, 9])
def test_a_tenant_with_one_message_at_a_time_gets_its_share_and_not_half(others):
    """It has no message while its last one is being leased, and the next one immediately afterwards."""
    tree = tree_of([f"t{number}" for number in range(others)])
    single = others + 1
    tree.add(single, "z")
    tree.set_leasable(single, True)
    served = 0
    for _ in range(100 * (others + 1)):
        number = tree.choose()
        tree.charge(number)
        tree.free(number)
        if number == single:
            tree.set_leasable(single, False)
            tree.set_leasable(single, True)
            served += 1
    assert served == 100


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_idle_time_gives_no_credit(is_forgotten):
    tree = tree_of(["a", "b"])
    serve(tree, 10)
    tree.set_leasable(2, False)
    serve(tree, 100)
    if is_forgotten:
        assert list(tree.forgettable()) == [2]
        tree.remove(2)
        tree.add(2, "b")
    tree.set_leasable(2, True)
    turns = serve(tree, 20)
    assert turns.count(2) == 10
    assert all(before != after for before, after in itertools.pairwise(turns))


def test_a_debt_survives_idle_time_until_virtual_time_has_passed_it():
    tree = tree_of(["a", "b"])
    tree.charge(2, 10)  # ten turns out of turn, by a filter
    tree.free(2, 10)
    tree.set_leasable(2, False)
    assert not tree.is_forgettable(2)
    tree.set_leasable(2, True)
    assert serve(tree, 10) == [1] * 10
    tree.set_leasable(2, False)
    assert tree.is_forgettable(2)


@pytest.mark.parametrize(("weights", "is_in_debt"), [([("a.b", 20)], False), ([], True)])
def test_the_last_child_stays_while_the_turns_of_its_parent_count(weights, is_in_debt):
    """Without children the parent has no turns of its own: it would lose its time of waiting, or its debt."""
    tree = tree_of(["a", "a.b"], Strategy.WEIGHTED, weights)
    if is_in_debt:
        tree.charge(1, 3)
        tree.free(1, 3)
        tree.set_leasable(1, False)
    else:
        assert serve(tree, 5) == [2] * 5
    tree.set_leasable(2, False)
    assert not tree.is_forgettable(2)


def test_turns_by_a_filter_do_not_hold_up_a_tenant_that_enters_later():
    """Served alone by a filter, `b` is far ahead. `c` must not wait until `a` has caught up."""
    tree = tree_of(["a", "b", "c"])
    tree.set_leasable(3, False)
    assert serve(tree, 1000, ["b"]) == [2] * 1000
    tree.set_leasable(3, True)
    turns = serve(tree, 100)
    assert (turns.count(1), turns.count(2), turns.count(3)) == (51, 0, 49)


def test_quiet_first_prefers_the_tenant_with_fewer_messages_leased():
    tree = tree_of(["noisy", "quiet"], Strategy.QUIET_FIRST)
    tree.charge(1, 9)
    serve(tree, 45)  # the noisy tenant pays for its first nine
    assert serve(tree, 110).count(1) == 10


def test_a_path_cannot_be_preferred_by_having_no_children():
    """`a` alone and `b` with a hundred children have the same share."""
    tree = tree_of(["a", "b", *[f"b.{number}" for number in range(100)]])
    assert serve(tree, 1000).count(1) == 500


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=12), st.sampled_from(TURN_STRATEGIES))
def test_many_turns_together_are_as_many_single_turns(history, strategy):
    paths = ["a", "a.b", "a.c", "d"]
    together, apart = tree_of(paths, strategy), tree_of(paths, strategy)
    for number, turns in history:
        together.charge(number, turns)
        for _ in range(turns):
            apart.charge(number)
        assert rows_of(together, paths) == rows_of(apart, paths)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["on", "off", "lease by key"])), max_size=30),
    WEIGHTS,
    st.sampled_from(TURN_STRATEGIES),
)
def test_what_is_forgettable_can_be_forgotten_without_effect(history, weights, strategy):
    """Settings constant: a changed weight counts from the next entry into the competition."""
    paths = ["a", "a.b", "d"]
    kept, forgetting = (tree_of(paths, strategy, weights, leasable=False) for _ in range(2))
    for number, action in history:
        for tree in (kept, forgetting):
            if action == "lease by key":
                if tree._tenants[number].leaf.is_active:
                    tree.charge(number)
                    tree.free(number)
            else:
                tree.set_leasable(number, action == "on")
        forgotten = []
        for tenant in forgetting.forgettable():
            forgetting.remove(tenant)
            forgotten.append(tenant)
        for tenant in sorted(forgotten):
            forgetting.add(tenant, paths[tenant - 1])
        assert kept.choose() == forgetting.choose()
        if kept.has_leasable():
            assert serve(kept, 1) == serve(forgetting, 1)


# ---------------------------------------------------------------------------------------------------- limits


def test_a_tenant_at_its_limit_is_passed_over_until_a_lease_ends():
    tree = tree_of(["a", "b"], leased_max=2)
    assert tree.lease_room(1) == 2
    tree.charge(1, 2)
    assert tree.lease_room(1) == 0
    assert {tree.choose(), tree.choose(["a"])} == {2, None}
    tree.free(1)
    assert tree.choose(["a"]) == 1


def test_every_lease_that_ends_frees_its_slot():
    """Defect B5 of an ancestor: only an acknowledgement freed it, so that a group was blocked without end."""
    tree = tree_of(["a"], leased_max=1)
    for _ in range(100):
        assert tree.choose() == 1
        tree.charge(1)
        assert tree.choose() is None
        tree.free(1)


def test_a_limit_counts_messages_of_the_tenant_and_not_of_its_children():
    tree = tree_of(["a", "a.b"], leased_max=1)
    tree.charge(2)
    assert tree.choose() == 1


def test_a_changed_limit_counts_immediately():
    tree = tree_of(["a"], leased_max=1)
    tree.charge(1)
    tree.configure(Fairness(Strategy.ROUND_ROBIN, leased_max=2))
    assert tree.choose() == 1
    tree.configure(Fairness(Strategy.ROUND_ROBIN, leased_max=1))
    assert tree.choose() is None


def test_more_leases_than_there_are_cannot_end():
    tree = tree_of(["a"])
    tree.charge(1)
    with pytest.raises(InvariantError, match="tenant_leased"):
        tree.free(1, 2)


def test_a_tenant_in_use_cannot_be_removed():
    tree = tree_of(["a", "a.b"])
    for number in (ROOT_TENANT, 1, 2):
        with pytest.raises(InvariantError, match="tenant_unused"):
            tree.remove(number)


# ---------------------------------------------------------------------------------------------------- rows


@given(
    st.permutations(range(1, 10)),
    st.lists(st.integers(1, 9), max_size=40),
    st.randoms(use_true_random=False),
    st.sampled_from(TURN_STRATEGIES),
)
def test_rows_do_not_depend_on_the_order_in_which_tenants_are_reported(order, history, chance, strategy):
    one, other = tree_of(PATHS, strategy, leasable=False), tree_of(PATHS, strategy, leasable=False)
    for number in range(1, 10):
        one.set_leasable(number, True)
    for number in order:
        other.set_leasable(number, True)
    for number in history:
        for tree in (one, other):
            tree.charge(number)
        other = restored(other, PATHS, chance.shuffle)
    assert rows_of(one, PATHS) == rows_of(other, PATHS)
    assert serve(one, 20) == serve(other, 20)


def test_a_changed_row_is_named_and_an_unchanged_one_is_not():
    tree = tree_of(["a", "a.b", "c"])
    assert tree.take_changed() == {0, 1, 2, 3}
    tree.charge(2)
    assert tree.take_changed() == {0, 1, 2}
    tree.free(2)
    assert tree.choose() == 3
    assert not tree.take_changed()


@given(st.lists(st.tuples(st.sampled_from(["on", "off", "serve", "free"]), st.integers(0, 3)), max_size=60))
def test_what_take_changed_does_not_name_has_not_changed(history):
    paths = ["a", "a.b", "c"]
    tree = tree_of(paths, Strategy.QUIET_FIRST, leased_max=2)
    stored = {number: tree.turns(number) for number in range(4)}
    tree.take_changed()
    for action, number in history:
        if action == "serve":
            if (chosen := tree.choose()) is not None:
                tree.charge(chosen)
        elif action == "free":
            if tree.leased(number):
                tree.free(number)
        else:
            tree.set_leasable(number, action == "on")
        for changed in tree.take_changed():
            stored[changed] = tree.turns(changed)
        assert stored == {number: tree.turns(number) for number in range(4)}


def test_the_strategy_none_stores_no_turns():
    tree = tree_of(["a", "b"], Strategy.NONE, leasable=False)
    tree.take_changed()
    tree.set_leasable(1, True, (0, 5, 7))
    tree.charge(1)
    assert not tree.take_changed()
    assert len({tree.turns(number) for number in range(3)}) == 1


def test_passes_beyond_64_bits_are_stored():
    tree = tree_of(["a", "b"])
    tree.charge(1, 2**70)
    copy = restored(tree, ["a", "b"])
    assert copy.turns(1) == tree.turns(1)
    assert len(copy.turns(1).passed) > 8


# ---------------------------------------------------------------------------------------------------- size


def test_heaps_stay_bounded_while_tenants_come_and_go():
    tree = tree_of([f"t{number}" for number in range(50)], Strategy.NONE)
    chance = random.Random(1)
    for step in range(20_000):
        tree.set_leasable(chance.randrange(1, 51), chance.random() < 0.7, (chance.randrange(100), 0, step))
    assert len(tree._root.heap) <= 2 * 50 + 16


def test_ten_thousand_active_tenants_take_few_megabytes():
    """The bound that `TENANT_BYTES` names."""
    tree = tree_of([f"tenant-{number:05}" for number in range(10_000)])
    serve(tree, 20_000)
    nodes = list(tree._by_path.values())
    entries = [entry for node in nodes for entry in node.heap]
    size = sum(sys.getsizeof(part) for node in nodes for part in (node, node.name, node.heap, node.order))
    size += sum(sys.getsizeof(entry) for entry in entries) + sys.getsizeof(tree._tenants) + sys.getsizeof(tree._by_path)
    assert size <= 10_000 * TENANT_BYTES


@pytest.mark.parametrize("served", [0, 7, 50])
def test_the_upcoming_tenants_of_one_level_are_the_next_turns(served):
    tree = tree_of([f"t{number}" for number in range(50)])
    serve(tree, served)
    upcoming = tree.upcoming(20)
    assert upcoming == serve(tree, 20)


def test_the_upcoming_tenants_are_of_all_levels():
    tree = tree_of(["a", "b"])
    tree.set_leasable(2, False)
    for number in range(50):
        tree.add(number + 3, f"b.{number}")
        tree.set_leasable(number + 3, True)
    assert tree.upcoming(20)[0] == 1
    assert len(tree.upcoming(20)) == 20, "`a` has one, and `b` the others"
    assert len(tree.upcoming(1000)) == 51


def test_the_ancestors_of_a_path_are_its_prefixes():
    assert ancestors("a.b.c") == ["a", "a.b"]
    assert ancestors("a") == ancestors("") == []
