"""Token buckets in queue time (`fsm/queue/rates.py`)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.errors import InvariantError
from raftmq.fsm.queue.rates import Rate, TenantRates

RATES = st.builds(Rate, st.integers(1, 5000), st.integers(1, 50))
STEPS = st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 2), st.integers(0, 60)), max_size=40)
"""(milliseconds until then, tenant, messages wanted)"""


def rows_of(rates):
    return {number: rates.row(number) for number in range(3)}


def take_up_to(rates, number, wanted, now_ms):
    rates.take(number, min(wanted, rates.available(number, now_ms) or 0), now_ms)


@given(RATES, STEPS)
def test_a_tenant_gets_what_exact_arithmetic_allows(rate, steps):
    """The twin: fractions of a message, no rounding."""
    rates = TenantRates(rate)
    held = dict.fromkeys(range(3), (Fraction(rate.burst), 0))
    now_ms = 0
    for elapsed_ms, number, wanted in steps:
        now_ms += elapsed_ms
        tokens, at_ms = held[number]
        tokens = min(Fraction(rate.burst), tokens + Fraction((now_ms - at_ms) * rate.per_second, 1000))
        assert rates.available(number, now_ms) == int(tokens)
        count = min(wanted, int(tokens))
        rates.take(number, count, now_ms)
        held[number] = (tokens - count, now_ms)
        assert rates.is_full(number, now_ms) is (tokens - count == rate.burst)


@given(RATES, STEPS)
def test_a_blocked_tenant_is_unblocked_in_the_first_millisecond_that_has_a_message(rate, steps):
    rates = TenantRates(rate)
    now_ms = 0
    for elapsed_ms, number, wanted in steps:
        now_ms += elapsed_ms
        rates.take_unblocked(now_ms, 10)
        take_up_to(rates, number, wanted, now_ms)
        blocked = [other for other in range(3) if not rates.available(other, now_ms)]
        assert blocked == [other for other in range(3) if rates.is_blocked(other)]
        at_ms = rates.next_at()
        assert (at_ms is None) is (not blocked)
        assert not any(rates.available(other, (at_ms or 0) - 1) for other in blocked)
        assert not blocked or any(rates.available(other, at_ms) for other in blocked)


@given(RATES, STEPS, st.integers(0, 40))
def test_loaded_buckets_have_the_same_future(rate, steps, stored_after):
    one, other = TenantRates(rate), TenantRates(rate)
    now_ms = 0
    for position, (elapsed_ms, number, wanted) in enumerate(steps):
        now_ms += elapsed_ms
        if position == stored_after:
            rows, other = rows_of(other), TenantRates(rate)
            for tenant in (2, 0, 1):
                other.load(tenant, rows[tenant])
        assert one.next_at() == other.next_at()
        assert one.take_unblocked(now_ms, 2) == other.take_unblocked(now_ms, 2)
        for rates in (one, other):
            take_up_to(rates, number, wanted, now_ms)
        assert rows_of(one) == rows_of(other)


@given(RATES, STEPS)
def test_what_take_changed_does_not_name_has_not_changed(rate, steps):
    rates = TenantRates(rate)
    stored = rows_of(rates)
    now_ms = 0
    for elapsed_ms, number, wanted in steps:
        now_ms += elapsed_ms
        rates.take_unblocked(now_ms, 1)
        take_up_to(rates, number, wanted, now_ms)
        for changed in rates.take_changed():
            stored[changed] = rates.row(changed)
        assert stored == rows_of(rates)


def test_a_tenant_gets_its_rate_after_its_burst():
    rates = TenantRates(Rate(per_second=100, burst=20))
    taken = 0
    for now_ms in range(1000, 3001):
        count = rates.available(1, now_ms) or 0
        rates.take(1, count, now_ms)
        taken += count
    assert taken == 20 + 200


def test_several_tenants_are_unblocked_by_time_and_number_within_a_bound():
    rates = TenantRates(Rate(per_second=1, burst=1))
    for number in (3, 1, 2):
        rates.take(number, 1, 100)
    rates.take(0, 1, 50)
    assert rates.take_unblocked(1049, 10) == []
    assert rates.take_unblocked(1100, 3) == [0, 1, 2]
    assert rates.next_at() == 1100
    assert rates.take_unblocked(1100, 3) == [3]
    assert rates.next_at() is None


def test_more_than_there_is_cannot_be_taken():
    rates = TenantRates(Rate(1, 2))
    with pytest.raises(InvariantError, match="rate_available"):
        rates.take(1, 3, 0)


def test_without_a_rate_nothing_is_limited_and_nothing_kept():
    rates = TenantRates()
    rates.take(1, 1_000_000, 5)
    assert rates.available(1, 5) is None
    assert rates.is_full(1, 5)
    assert rates.row(1) is None
    assert not rates.take_changed()


def test_a_changed_rate_counts_from_then_on_and_names_who_is_unblocked():
    rates = TenantRates(Rate(per_second=1, burst=1))
    rates.take(1, 1, 0)
    rates.take(2, 1, 0)
    assert rates.configure(Rate(per_second=10, burst=5), 500) == []
    assert rates.next_at() == 550
    assert rates.take_changed() == {1, 2}
    assert rates.configure(None, 520) == [1, 2]
    assert rates.next_at() is None
    assert rates.configure(Rate(per_second=1, burst=3), 530) == []
    assert rates.available(1, 530) == 3


def test_a_full_bucket_is_full_under_a_larger_burst_too():
    rates = TenantRates(Rate(per_second=1000, burst=2))
    rates.take(1, 1, 0)
    rates.configure(Rate(per_second=1, burst=10), 1000)
    assert rates.available(1, 1000) == 10
    assert rates.row(1) is None


def test_a_forgotten_tenant_waits_for_nothing():
    rates = TenantRates(Rate(1, 1))
    rates.take(1, 1, 0)
    rates.forget(1)
    assert rates.next_at() is None
    assert not rates.take_changed()


def test_the_heap_of_blocked_tenants_stays_bounded():
    rates = TenantRates(Rate(per_second=1, burst=1))
    for round_number in range(1000):
        rates.take(1, 1, round_number * 1000)
        rates.forget(1)
    assert len(rates._blocked) <= 16 + 2
