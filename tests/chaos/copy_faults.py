"""Faults with data directories in a wrong place: an old copy is restored, two brokers run on the same data, or two exchange their data. No
acknowledged record is lost.

A broker with restored or cloned data has forgotten votes and acknowledgements, so the others must not believe it. It may report this and
serve nothing. The fault then starts it on an empty disk, as the operations guide says.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos.condition import is_ready, wait_until, what_is_not_whole
from tests.chaos.fault import START_SECONDS, FaultError, Target, fault, last_lines, served_or_ended

SETTLE_SECONDS = 45.0
"""A broker that has not recovered by then gets an empty disk."""
OTHERS_SECONDS = 90.0
"""The other brokers must be ready by then. Both may have been down, too, one of them for long."""
LAG_SECONDS = (2.0, 4.0)
"""How long records are acknowledged that neither the copy nor the lagging broker has."""
TOGETHER_SECONDS = (5.0, 8.0)
"""How long these two run alone: longer than an election."""


def _settle(target: Target, victim: int) -> None:
    """Wait until the other brokers serve. Start the victim on an empty disk if it does not serve, too."""
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
    """Copy a broker's data and restart it. The yielded call kills it, restores the copy and starts it again."""
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
    """Leave a majority without the newest records: a broker with an old copy and one that lags. The third, which has them, is down."""
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


@fault("copies", (2.0, 5.0), needs_whole=True)
def exchanged_directories(target: Target) -> Iterator[str]:
    """Exchange the data of two brokers whose numbers are not configured. Each is the other one then, at the other's addresses."""
    cluster = target.cluster
    one, other = target.chance.sample(cluster.broker_ids, 2)

    def exchange(*, are_numbered: bool) -> None:
        for victim in (one, other):
            if cluster.is_running(victim):
                cluster.kill(victim)
            cluster.number(victim, is_numbered=are_numbered)
        cluster.exchange_data(one, other)
        for victim in (one, other):
            cluster.restart(victim, wait=False)

    exchange(are_numbered=False)
    try:
        for victim in (one, other):
            if not served_or_ended(target, victim, "at the addresses of another broker"):
                raise FaultError(f"the data of another broker end {victim}:\n{last_lines(target, victim)}")
        yield f"{one} and {other} are each other"
    finally:
        exchange(are_numbered=True)


@fault("copies", (0.0, 0.5), needs_whole=True)
def data_of_another_number(target: Target) -> Iterator[str]:
    """Exchange the data of two brokers whose numbers are configured. Each must refuse them in words."""
    cluster = target.cluster
    one, other = target.chance.sample(cluster.broker_ids, 2)
    for victim in (one, other):
        cluster.kill(victim)
    cluster.exchange_data(one, other)
    try:
        for victim, owner in ((one, other), (other, one)):
            logged = len(cluster.logs(victim))
            cluster.restart(victim, wait=False)
            if served_or_ended(target, victim, f"with the data of {owner}"):
                raise FaultError(f"broker {victim} serves with the data of broker {owner}")
            if f"belongs to broker {owner}" not in cluster.logs(victim)[logged:]:
                raise FaultError(f"broker {victim} does not name the owner of its data:\n{last_lines(target, victim)}")
        yield f"{one} and {other} refused the data of each other"
    finally:
        for victim in (one, other):
            if cluster.is_running(victim):
                cluster.kill(victim)
        cluster.exchange_data(one, other)
        for victim in (one, other):
            cluster.restart(victim, wait=False)
