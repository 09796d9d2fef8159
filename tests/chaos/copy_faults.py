"""Copies of a data directory: an old one that was put back, and two brokers on the same one. No record acknowledged since is lost.

Where a copy was restored, or a cloned machine started, one broker's memory is wrong about what it promised. The others must not
believe it. It may say so and serve nothing: then it is started on an empty disk, as the operations guide says.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos.condition import is_ready, wait_until, what_is_not_whole
from tests.chaos.fault import START_SECONDS, FaultError, Target, fault

SETTLE_SECONDS = 45.0
"""A broker that has not made its way back by then, and said why, gets a new disk."""
OTHERS_SECONDS = 90.0
"""Both were down as well, one of them for long."""
LAG_SECONDS = (2.0, 4.0)
"""For so long records are acknowledged that the copy and the broker that lags have not seen."""
TOGETHER_SECONDS = (5.0, 8.0)
"""For so long the two of them are alone: longer than an election."""


def _settle(target: Target, victim: int) -> None:
    """The others serve; the victim serves, too, or is started on an empty disk."""
    cluster = target.cluster
    for broker_id in cluster.broker_ids:
        if not cluster.is_running(broker_id):
            cluster.restart(broker_id, wait=False)
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != victim]
    if not wait_until(lambda: all(is_ready(cluster, broker_id) for broker_id in others), OTHERS_SECONDS, target.stop):
        raise FaultError(f"{others} are not all ready {OTHERS_SECONDS:.0f} s after {victim} came with a wrong past")
    if wait_until(lambda: not what_is_not_whole(cluster, ""), SETTLE_SECONDS, target.stop):
        return
    if cluster.is_running(victim):
        cluster.kill(victim)
    cluster.wipe(victim)
    cluster.restart(victim, wait=False)


@contextmanager
def _copied(target: Target, victim: int) -> Iterator[Callable[[], None]]:
    """Copy a broker's data and start it again. The yielded call kills it, puts the copy back and starts it with that."""
    cluster = target.cluster
    copy = cluster.root / "copy"

    def put_back() -> None:
        if cluster.is_running(victim):
            cluster.kill(victim)
        cluster.replace_data(victim, copy)
        cluster.restart(victim, wait=False)

    try:
        cluster.kill(victim)
        shutil.copytree(cluster.data_dir(victim).resolve(), copy)
        cluster.restart(victim, wait=False)
        if not wait_until(lambda: not what_is_not_whole(cluster, target.topic), START_SECONDS, target.stop):
            raise FaultError(f"after broker {victim} was copied: {what_is_not_whole(cluster, target.topic)}")
        yield put_back
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        _settle(target, victim)


@fault("copies", (0.0, 0.5), needs_whole=True)
def old_copy_and_one_that_lags(target: Target) -> Iterator[str]:
    """Together they are a majority, and neither has seen the newest records. The third, which has, is down in the meantime."""
    cluster = target.cluster
    copied, lagging, knowing = target.chance.sample(cluster.broker_ids, 3)
    with _copied(target, copied) as put_back:
        cluster.kill(lagging)
        time.sleep(target.chance.uniform(*LAG_SECONDS))
        cluster.kill(copied)
        cluster.kill(knowing)
        cluster.restart(lagging, wait=False)
        put_back()
        time.sleep(target.chance.uniform(*TOGETHER_SECONDS))
        yield f"{copied} has an old copy, {lagging} lags, {knowing} was down"


@fault("copies", (0.0, 0.5), needs_whole=True)
def old_copy(target: Target) -> Iterator[str]:
    copied = target.any_broker()
    with _copied(target, copied) as put_back:
        time.sleep(target.chance.uniform(*LAG_SECONDS))
        put_back()
        yield f"{copied} has an old copy"


@fault("copies", (4.0, 7.0), needs_whole=True)
def two_brokers_of_one_directory(target: Target) -> Iterator[str]:
    cluster = target.cluster
    victim = target.leader_or_any()
    cluster.kill(victim)
    try:
        with cluster.clone(victim):  # copied while it is down, started when it is back
            cluster.restart(victim, wait=False)
            yield f"{victim} runs twice"
    finally:
        if not cluster.is_running(victim):
            cluster.restart(victim, wait=False)
        _settle(target, victim)
