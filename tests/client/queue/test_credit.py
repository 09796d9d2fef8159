from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.queue.credit import split_credit


@pytest.mark.parametrize(
    ("wanted", "ready", "shares"),
    [
        (0, [0, 5], [0, 0]),
        (1, [0], [1]),
        (1, [0, 0, 0], [1, 1, 1]),
        (10, [0, 0], [5, 5]),
        (10, [0, 3], [1, 9]),
        (11, [2, 0, 9], [5, 1, 5]),
        (5, [], []),
    ],
)
def test_credit_goes_to_leaders_that_have_messages(wanted: int, ready: list[int], shares: list[int]) -> None:
    assert split_credit(wanted, ready) == shares


@given(st.integers(0, 1000), st.lists(st.integers(0, 5), max_size=9))
def test_every_leader_gets_credit_and_no_more_than_wanted_is_shared_out(wanted: int, ready: list[int]) -> None:
    shares = split_credit(wanted, ready)
    assert len(shares) == len(ready)
    if wanted and ready:
        assert min(shares) >= 1
        assert sum(shares) == max(wanted, len(ready))
    else:
        assert not any(shares)
