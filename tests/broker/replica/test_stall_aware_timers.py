"""The engine's ticks continue after a failure."""

from tests.support.broker.engine_cluster import EngineCluster
from tests.support.broker.waiting import turn_until


async def test_a_tick_that_fails_does_not_end_the_ticking():
    async with EngineCluster(1) as cluster:
        engine = cluster.nodes[1].engine
        calls = []

        def tick():
            calls.append(1)
            if len(calls) == 1:
                raise ZeroDivisionError

        seen = []
        cluster.loop.set_exception_handler(lambda loop, context: seen.append(context))
        engine._timers.arm(tick, 0.001)
        await turn_until(lambda: len(calls) > 2)
        cluster.loop.set_exception_handler(None)
        assert len(seen) == 1
