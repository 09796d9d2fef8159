"""When a small batch may go out."""

import math

from raftmq.client.base import settings
from raftmq.client.producer.broker_sender import BrokerSender, _Request


def sent_at_a_time_that_rounds_badly():
    """A time after which, by GATHER_SECONDS_MAX, less than that seems to have passed."""
    gather = settings.GATHER_SECONDS_MAX
    candidates = (5.0 + number / 1000 for number in range(10_000))
    return next(at for at in candidates if (at + gather) - at < gather)


def test_an_answer_counts_as_late_exactly_at_the_time_of_its_timer():
    sent_at = sent_at_a_time_that_rounds_badly()
    due = sent_at + settings.GATHER_SECONDS_MAX
    sender = object.__new__(BrokerSender)  # with a loop it would set its timer again, for the time that it is
    sender._pending = {1: _Request([], 0, sent_at)}
    assert sender._may_send_small(due)
    sender._pending = {1: _Request([], 0, math.nextafter(sent_at, 0))}
    assert sender._may_send_small(due)
