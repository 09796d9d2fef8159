"""When a small batch may go out."""

import asyncio
import math

import uvloop
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


def test_a_small_batch_goes_out_however_short_its_timer_is_and_if_it_comes_early():
    async def run() -> None:
        sender = object.__new__(BrokerSender)
        sender._loop = loop = asyncio.get_running_loop()
        sender._gather_timer = None
        flushes: asyncio.Queue[None] = asyncio.Queue()
        sender._flush_soon = lambda: flushes.put_nowait(None)  # type: ignore[method-assign]
        now = loop.time()
        sender._pending = {1: _Request([], 0, now + 0.0001 - settings.GATHER_SECONDS_MAX)}
        async with asyncio.timeout(5):
            for _ in range(2):
                assert not sender._may_send_small(now)  # uvloop's `call_at` returns a handle without `when()`
                assert not sender._may_send_small(now)
                await flushes.get()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
