"""`TimeSearchExact` passes a correct store, and notices a bound that is too low."""

from __future__ import annotations

import random

from raftmq.storage.log_store import Update

from sim.cluster.invariants.time_search import check_time_search
from sim.cluster.world.disk import Disk, SimLogStore
from tests.support.sim.broken import broken
from tests.support.storage.log_builder import KEY, LogBuilder, initial_state


def test_a_bound_that_is_too_low_is_noticed() -> None:
    disk = Disk(random.Random(1), 1 << 30)
    store = SimLogStore(disk, map_bytes=1 << 26)
    store.create(KEY, initial_state(), ())
    store.open(KEY)
    assert check_time_search("here", store, disk, KEY, 0) == 0
    log = LogBuilder()
    store.append_batch([(KEY, Update(entries=tuple(log.batch(time_ms) for time_ms in range(200))))])
    assert all(check_time_search("here", store, disk, KEY, turn) == 5 for turn in range(200))
    times = store._replicas[KEY]._times
    block = times.next_block(100, 0)
    assert block is not None
    times.settle(block, 0, 0, times.replacements)
    with broken("TimeSearchExact"):
        check_time_search("here", store, disk, KEY, 100)
