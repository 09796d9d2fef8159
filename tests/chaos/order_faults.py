"""Disturb a cluster with orders that its operator may give at any time. Clients must not notice them, and each must be carried out in the end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.condition import is_ready, wait_until, what_is_not_whole
from tests.chaos.fault import FaultError, Target, fault, last_lines
from tests.chaos.operator import ACTIVE_MIN, USUAL_FACTOR

FACTORS = (1, 2, 3, 4, 5)
RATES = (0, 65_536, 4 << 20)
"""Bytes per second of moves. 0: unlimited."""
MOVES_MAX = (1, 2, 8)
SETTINGS = {"log_level": ("warning", "error"), "scrub_bytes_per_second": ("1MiB", "16MiB")}
"""Settings of brokers that may change while they run, and whose values clients do not notice."""
RESTART_SECONDS = 60.0
REMOVAL_SECONDS = 30.0
"""A broker that has just died may still count as running."""
WHOLE_SECONDS = 120.0


def _active(target: Target) -> list[int]:
    return [broker_id for broker_id in target.cluster.broker_ids if broker_id not in target.operator.drained]


@fault("orders", (0.5, 6.0), is_light=True)
def drain_and_undrain(target: Target) -> Iterator[str]:
    """End the draining of a broker while its replicas move."""
    victim = target.chance.choice(_active(target))
    answer = target.operator.drain(victim)
    try:
        yield f"drain {victim}: {answer}"
    finally:
        target.operator.undrain(victim)


@fault("orders", (0.5, 3.0), is_light=True)
def drain_for_good(target: Target) -> Iterator[str]:
    """Drain a broker. If there are too few others, end the draining of one of them, or try it and take it back."""
    operator = target.operator
    active = _active(target)
    victim = target.chance.choice(active)
    if len(active) > ACTIVE_MIN:
        yield f"drain {victim} for good: {operator.drain(victim)}"
    elif operator.drained:
        victim = min(operator.drained)
        yield f"undrain {victim}: {operator.undrain(victim)}"
    else:
        yield f"drain {victim}, of too few: {operator.drain(victim)}"
        operator.undrain(victim)


@fault("orders", (0.5, 3.0), is_light=True)
def rebalance(target: Target) -> Iterator[str]:
    leaders_only = target.chance.random() < 0.5
    answer = target.operator.give("rebalance", lambda admin: admin.rebalance(leaders_only=leaders_only))
    yield f"rebalance{' of leaders' if leaders_only else ''}: {answer}"


@fault("orders", (0.5, 4.0), is_light=True)
def move_partition(target: Target) -> Iterator[str]:
    """Move a partition to any brokers, sometimes to another one before the first move has ended, and remove its pin afterwards."""
    operator, chance = target.operator, target.chance
    partition = chance.randrange(operator.partition_count() or 1)
    factor = operator.factor or USUAL_FACTOR
    said = []
    for _ in range(chance.randint(1, 2)):
        brokers = chance.sample(target.cluster.broker_ids, min(factor, len(target.cluster.broker_ids)))
        answer = operator.move(partition, brokers)
        said.append(f"partition {partition} to {brokers}: {answer}")
    try:
        yield "move " + ", then ".join(said)
    finally:
        operator.give("unpin", lambda admin: admin.unpin_partition(target.topic, partition))


@fault("orders", (0.2, 1.0), is_light=True)
def transfer_leaders(target: Target) -> Iterator[str]:
    """Transfer some leaderships in a row, each to any broker."""
    operator, chance = target.operator, target.chance
    count = operator.partition_count() or 1
    said = []
    for _ in range(chance.randint(1, 4)):
        partition, broker_id = chance.randrange(count), target.any_broker()
        said.append(f"of {partition} to {broker_id}: {operator.transfer(partition, broker_id)}")
    yield "leadership " + ", ".join(said)


@fault("orders", (1.0, 6.0), is_light=True)
def another_factor(target: Target) -> Iterator[str]:
    """Give the topic more or fewer replicas, and then the usual number again. Data are lost only while it has the usual number."""
    operator = target.operator
    factor = target.chance.choice([one for one in FACTORS if one != (operator.factor or USUAL_FACTOR)])
    answer = operator.set_factor(factor)
    if answer.outcome == "accepted" and factor > len(target.cluster.broker_ids):
        raise FaultError(f"{factor} replicas were accepted by {len(target.cluster.broker_ids)} brokers")
    try:
        yield f"replication factor {factor}: {answer}"
    finally:
        operator.set_factor(USUAL_FACTOR)
        operator.factor = USUAL_FACTOR  # also if it is without an answer: it is repeated in the end


@fault("orders", (0.2, 1.0), is_light=True)
def one_more_partition(target: Target) -> Iterator[str]:
    answer = target.operator.add_partition()
    yield f"one more partition: {answer}, so {target.operator.partitions}"


@fault("orders", (0.5, 4.0), is_light=True)
def other_balancing(target: Target) -> Iterator[str]:
    """Change the rate and number of moves, and pause automatic balancing."""
    operator, chance = target.operator, target.chance
    rate, moves_max, is_auto = chance.choice(RATES), chance.choice(MOVES_MAX), chance.random() < 0.5
    answer = operator.give("balancing", lambda admin: admin.set_balancing(is_auto, moves_max, rate))
    try:
        yield f"auto_balance={is_auto}, moves_max={moves_max}, bytes_per_second={rate}: {answer}"
    finally:
        operator.give("balancing", lambda admin: admin.set_balancing(True, max(MOVES_MAX), 0))


@fault("orders", (0.0, 0.5), is_light=True)
def raise_level(target: Target) -> Iterator[str]:
    """Raise the feature level, which has its highest value already: that must be harmless at any time."""
    yield f"raise the level: {target.operator.give('level', lambda admin: admin.raise_feature_level())}"


@fault("orders", (0.5, 2.0), needs_whole=True)
def join(target: Target) -> Iterator[str]:
    """Start another broker, which joins and fills up by itself."""
    cluster = target.cluster
    if cluster.can_add_broker:
        broker_id = cluster.add_broker()
        yield f"broker {broker_id} joined"
    else:
        yield "no broker joins: no place is left for it"


@fault("orders", (0.0, 1.0), needs_whole=True)
def remove_broker(target: Target) -> Iterator[str]:
    """Drain and remove a broker, unless the topics need it: then the order must be refused."""
    operator, cluster = target.operator, target.cluster
    active = _active(target)
    if len(active) > ACTIVE_MIN or operator.drained:
        victim = target.chance.choice(sorted(operator.drained) or active)
        operator.has_ordered = True
        cluster.remove_broker(victim)
        operator.drained.discard(victim)
        operator.answers["remove accepted"] += 1
        yield f"broker {victim} was drained and removed"
        return
    victim = target.chance.choice(active)
    answer = operator.give("remove", lambda admin: admin.remove_broker(victim))
    if answer.outcome == "accepted":
        raise FaultError(f"broker {victim} was removed although it holds replicas")
    yield f"remove {victim}: {answer}"


@fault("orders", (0.0, 2.0), needs_whole=True)
def remove_dead_broker(target: Target) -> Iterator[str]:
    """Kill a broker and remove it by force. Its replicas are rebuilt on the others. If they are too few, another broker joins first."""
    operator, cluster = target.operator, target.cluster
    if len(_active(target)) <= ACTIVE_MIN and not operator.drained:
        if not cluster.can_add_broker:
            yield "no broker dies for good: no place is left for another one"
            return
        cluster.add_broker()
    active = _active(target)
    victim = target.chance.choice(active if len(active) > ACTIVE_MIN else sorted(operator.drained))
    cluster.kill(victim)
    answer = None

    def is_removed() -> bool:
        nonlocal answer
        answer = operator.give("remove by force", lambda admin: admin.remove_broker(victim, force=True))
        return answer.outcome == "accepted" or "already removed" in answer.words  # an earlier answer was lost

    if not wait_until(is_removed, REMOVAL_SECONDS, target.stop):
        cluster.restart(victim, wait=False)
        raise FaultError(f"broker {victim} is dead, and was not removed by force: {answer}")
    cluster.forget(victim)
    operator.drained.discard(victim)
    yield f"broker {victim} died and was removed by force"


@fault("orders", (0.2, 2.0), is_light=True)
def other_settings(target: Target) -> Iterator[str]:
    """Change a setting of all brokers or of one while they run, and remove it again."""
    operator, chance = target.operator, target.chance
    key = chance.choice(sorted(SETTINGS))
    value = chance.choice(SETTINGS[key])
    broker_id = chance.choice([None, *target.cluster.broker_ids])
    answer = operator.give("config", lambda admin: admin.alter_config({key: value}, broker_id=broker_id))
    try:
        yield f"{key} = {value} of {broker_id or 'all'}: {answer}"
    finally:
        operator.give("config", lambda admin: admin.alter_config(unset=[key], broker_id=broker_id))


@fault("orders", (0.0, 0.5), needs_whole=True)
def rolling_restart(target: Target) -> Iterator[str]:
    """Restart every broker in order, each when the cluster is whole."""
    cluster = target.cluster
    for broker_id in cluster.broker_ids:
        _restart(target, broker_id)
    yield f"all of {cluster.broker_ids} restarted in order"


def _restart(target: Target, broker_id: int) -> None:
    cluster = target.cluster
    code = cluster.stop(broker_id)
    cluster.restart(broker_id, wait=False)
    if code:
        raise FaultError(f"broker {broker_id} ended with code {code} after SIGTERM:\n{last_lines(target, broker_id)}")
    if not wait_until(lambda: is_ready(cluster, broker_id), RESTART_SECONDS, target.stop):
        raise FaultError(f"broker {broker_id} does not serve {RESTART_SECONDS:.0f} s after its orderly restart")
    if not wait_until(lambda: not what_is_not_whole(cluster, target.topic), WHOLE_SECONDS, target.stop):
        raise FaultError(f"after the restart of broker {broker_id}: {what_is_not_whole(cluster, target.topic)}")
