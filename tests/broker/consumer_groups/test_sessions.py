"""Deadlines of many keys agree with those of a twin that checks all of them."""

from hypothesis import given
from hypothesis import strategies as st
from raftmq.broker.consumer_groups.sessions import Sessions

KEYS = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.just("extend"), KEYS, st.integers(0, 20)),
    st.tuples(st.just("forget"), KEYS, st.just(0)),
    st.tuples(st.just("shift"), KEYS, st.integers(1, 5)),
    st.tuples(st.just("clear"), KEYS, st.just(0)),
    st.tuples(st.just("advance"), KEYS, st.integers(0, 8)),
)


@given(st.lists(STEPS, max_size=60))
def test_keys_expire_after_their_deadline(steps: list[tuple[str, str, int]]) -> None:
    sessions: Sessions[str] = Sessions()
    twin: dict[str, float] = {}
    now = 0.0
    for step, key, number in steps:
        if step == "extend":
            sessions.extend(key, now + number)
            twin[key] = now + number
        elif step == "forget":
            sessions.forget(key)
            twin.pop(key, None)
        elif step == "shift":
            sessions.shift(number)
            twin = {name: deadline + number for name, deadline in twin.items()}
        elif step == "clear":
            sessions.clear()
            twin.clear()
        else:
            now += number
            expected = {name for name, deadline in twin.items() if deadline <= now}
            found = sessions.expired(now)
            assert sorted(found) == sorted(expected)
            twin = {name: deadline for name, deadline in twin.items() if deadline > now}
        assert len(sessions) == len(twin)
        assert {name: sessions.deadline(name) for name in twin} == twin
        assert all((name in sessions) == (name in twin) for name in "abcd")


def test_a_key_that_comes_and_goes_leaves_nothing_behind() -> None:
    sessions: Sessions[str] = Sessions()
    for now in range(10_000):
        sessions.extend("a", now + 10)
        sessions.expired(now)
        if now % 3 == 0:
            sessions.forget("a")
    assert len(sessions._heap) <= 2
