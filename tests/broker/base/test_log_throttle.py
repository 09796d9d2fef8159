"""A lasting condition is logged once per interval."""

from raftmq.broker.base.log_throttle import LogThrottle


def test_a_lasting_condition_is_logged_once_per_interval_and_a_new_one_immediately():
    now = 0.0
    pace = LogThrottle(60, clock=lambda: now)
    assert [pace.is_due("a"), pace.is_due("b"), pace.is_due("a")] == [True, True, False]
    now = 59.9
    assert not pace.is_due("a")
    now = 60.0
    assert pace.is_due("a")
    pace.forget("a")
    assert pace.is_due("a")


def test_a_throttle_forgets_the_oldest_of_too_many_conditions():
    pace = LogThrottle(60, clock=lambda: 0.0)
    assert all(pace.is_due(number) for number in range(1000))
    assert pace.is_due(0)
    assert not pace.is_due(999)
