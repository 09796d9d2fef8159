"""Register every fault that the nemesis knows: faults of processes, links, disks, power and data. Imports register the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos import (  # noqa: F401 -- they register theirs
    clock_faults,
    copy_faults,
    file_faults,
    limit_faults,
    majority_faults,
    order_faults,
    space_faults,
    version_faults,
)
from tests.chaos.condition import busiest_leader, wait_until
from tests.chaos.damage import flip_bytes, flip_in_newest_row, replica_files, truncate
from tests.chaos.fault import FAULTS, FaultError, Target, damaged, families, fault
from tests.chaos.links import CLIENTS, partition

__all__ = ["FAULTS", "families"]

EXIT_SECONDS = 40.0
"""A broker must have ended this long after its disk failed."""


# ------------------------------------------------------------------------------------------------------------- processes


@fault("kill", (0.0, 2.0))
def kill_one(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    target.cluster.kill(victim)
    try:
        yield f"kill -9 of {victim}"
    finally:
        target.cluster.restart(victim, wait=False)


@fault("kill", (0.0, 0.5))
def kill_all(target: Target) -> Iterator[str]:
    for broker_id in target.cluster.broker_ids:
        target.cluster.kill(broker_id)
    try:
        yield "kill -9 of all"
    finally:
        for broker_id in target.cluster.broker_ids:
            target.cluster.restart(broker_id, wait=False)


@fault("kill", (0.2, 1.0))
def kill_while_starting(target: Target) -> Iterator[str]:
    """Interrupt the replay of the log three times, at random moments."""
    victim = target.any_broker()
    moments = [target.chance.uniform(0.2, 1.5) for _ in range(3)]
    try:
        for moment in moments:
            target.cluster.restart(victim, wait=False)
            time.sleep(moment)
            target.cluster.kill(victim)
        yield f"kill -9 of {victim} while it starts, after {', '.join(f'{moment:.1f}' for moment in moments)} s"
    finally:
        target.cluster.restart(victim, wait=False)


@fault("freeze", (1.0, 5.0))
def freeze_one(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    target.cluster.pause(victim)
    try:
        yield f"SIGSTOP of {victim}"
    finally:
        target.cluster.resume(victim)


@fault("freeze", (1.0, 4.0))
def freeze_two(target: Target) -> Iterator[str]:
    victims = target.chance.sample(target.cluster.broker_ids, 2)
    for victim in victims:
        target.cluster.pause(victim)
    try:
        yield f"SIGSTOP of {victims}: no majority"
    finally:
        for victim in victims:
            target.cluster.resume(victim)


@fault("freeze", (1.0, 3.0))
def freeze_one_and_kill_another(target: Target) -> Iterator[str]:
    frozen = target.leader_or_any()
    killed = target.any_broker(frozen)
    target.cluster.pause(frozen)
    try:
        target.cluster.kill(killed)
        yield f"SIGSTOP of {frozen}, kill -9 of {killed}"
    finally:
        target.cluster.resume(frozen)
        if not target.cluster.is_running(killed):
            target.cluster.restart(killed, wait=False)


@fault("freeze", (0.5, 2.0))
def stutter(target: Target) -> Iterator[str]:
    """Stop and resume a broker several times, each time for less than an election timeout."""
    victim = target.leader_or_any()
    times = target.chance.randint(3, 6)
    for _ in range(times):
        target.cluster.pause(victim)
        try:
            time.sleep(target.chance.uniform(0.1, 0.8))
        finally:
            target.cluster.resume(victim)
        time.sleep(0.05)
    yield f"SIGSTOP of {victim} {times} times for moments"


# ----------------------------------------------------------------------------------------------------------------- links


def _others(target: Target, broker_id: int) -> list[int]:
    return [other for other in target.cluster.broker_ids if other != broker_id]


@contextmanager
def _cut(target: Target, *directions: tuple[int, int]) -> Iterator[None]:
    links = target.cluster.links
    try:
        for source, sink in directions:
            links.cut(source, sink)
        yield
    finally:
        for source, sink in directions:
            links.restore(source, sink)


@fault("links", (2.0, 5.0), is_light=True)
def one_direction_dies(target: Target) -> Iterator[str]:
    source = target.leader_or_any()
    sink = target.any_broker(source)
    with _cut(target, (source, sink)):
        yield f"{source} no longer reaches {sink}, which still reaches it"


@fault("links", (2.0, 5.0), is_light=True)
def leader_is_not_heard(target: Target) -> Iterator[str]:
    leader = busiest_leader(target.cluster, target.topic)
    with _cut(target, *((leader, other) for other in _others(target, leader))):
        yield f"nothing from {leader} reaches the others; it hears them"


@fault("links", (2.0, 5.0), is_light=True)
def leader_does_not_hear(target: Target) -> Iterator[str]:
    leader = busiest_leader(target.cluster, target.topic)
    with _cut(target, *((other, leader) for other in _others(target, leader))):
        yield f"nothing from the others reaches {leader}; they hear it"


@fault("links", (2.0, 5.0), is_light=True)
def isolated(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    directions = [pair for other in _others(target, victim) for pair in ((victim, other), (other, victim))]
    with _cut(target, *directions):
        yield f"{victim} and the others cannot reach each other; clients reach all"


@fault("links", (2.0, 5.0), is_light=True)
def bridge(target: Target) -> Iterator[str]:
    """Cut the link between two brokers that both reach the third: each has a majority and takes the other for dead."""
    one = busiest_leader(target.cluster, target.topic)
    other = target.any_broker(one)
    with _cut(target, (one, other), (other, one)):
        yield f"{one} and {other} cannot reach each other, both reach the third"


@fault("links", (1.0, 4.0), is_light=True)
def clients_hear_nothing(target: Target) -> Iterator[str]:
    """Let requests arrive and be carried out, but lose every answer."""
    leader = busiest_leader(target.cluster, target.topic)
    with _cut(target, (leader, CLIENTS)):
        yield f"nothing from {leader} reaches a client"


@fault("links", (1.0, 4.0), is_light=True)
def clients_are_not_heard(target: Target) -> Iterator[str]:
    leader = busiest_leader(target.cluster, target.topic)
    with _cut(target, (CLIENTS, leader)):
        yield f"nothing from a client reaches {leader}"


@fault("links", (2.0, 5.0), is_light=True)
def slow_link(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    target.cluster.links.slow(victim)
    try:
        yield f"what {victim} sends trickles"
    finally:
        target.cluster.links.hurry(victim)


@fault("links", (1.0, 3.0))
def cut_off_and_killed(target: Target) -> Iterator[str]:
    """Cut off a leader with records that no other broker has, then kill it. It returns to a cluster that continued without it."""
    victim = busiest_leader(target.cluster, target.topic)
    try:
        partition(target.cluster.links, [victim], _others(target, victim))
        time.sleep(target.chance.uniform(1.0, 3.0))
        target.cluster.kill(victim)
        yield f"{victim} cut off, then kill -9"
    finally:
        target.cluster.links.heal()
        if not target.cluster.is_running(victim):
            target.cluster.restart(victim, wait=False)


# ----------------------------------------------------------------------------------------------------------------- disks


@fault("disk", (1.0, 4.0), is_light=True)
def slow_disk(target: Target) -> Iterator[str]:
    victim, milliseconds = target.leader_or_any(), target.chance.randint(30, 300)
    disk = target.cluster.disk(victim)
    disk.be_slow(milliseconds)
    try:
        yield f"each fsync of {victim} takes {milliseconds} ms"
    finally:
        disk.work()


@fault("disk", (1.0, 5.0), is_light=True)
def hanging_disk(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    disk = target.cluster.disk(victim)
    disk.hang()
    try:
        yield f"no fsync of {victim} returns"
    finally:
        disk.work()


def _failing(target: Target, *, is_write: bool) -> Iterator[str]:
    victim = target.leader_or_any()
    disk = target.cluster.disk(victim)
    try:
        if is_write:
            disk.fail_writes()
        else:
            disk.fail_syncs()
        if not wait_until(lambda: not target.cluster.is_running(victim), EXIT_SECONDS, target.stop):
            raise FaultError(f"broker {victim} still runs {EXIT_SECONDS:.0f} s after its disk began to fail")
        yield f"{'writes' if is_write else 'fsyncs'} of {victim} failed, and it ended"
    finally:
        disk.work()
        target.cluster.restart(victim, wait=False)


@fault("disk", (0.0, 1.0))
def failing_syncs(target: Target) -> Iterator[str]:
    yield from _failing(target, is_write=False)


@fault("disk", (0.0, 1.0))
def failing_writes(target: Target) -> Iterator[str]:
    yield from _failing(target, is_write=True)


# ----------------------------------------------------------------------------------------------------------------- power


@fault("power", (0.0, 2.0))
def power_loss_of_one(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    target.cluster.lose_power(victim)
    try:
        yield f"{victim} lost power"
    finally:
        target.cluster.restart(victim, wait=False)


@fault("power", (0.0, 0.5))
def power_loss_of_all(target: Target) -> Iterator[str]:
    target.cluster.lose_power(*target.cluster.broker_ids)
    try:
        yield "all lost power"
    finally:
        for broker_id in target.cluster.broker_ids:
            target.cluster.restart(broker_id, wait=False)


@fault("power", (0.5, 2.0))
def power_loss_of_one_while_another_is_frozen(target: Target) -> Iterator[str]:
    frozen = target.leader_or_any()
    victim = target.any_broker(frozen)
    target.cluster.pause(frozen)
    try:
        time.sleep(target.chance.uniform(0.5, 3.0))
        target.cluster.lose_power(victim)
        target.cluster.restart(victim, wait=False)
        yield f"{victim} lost power while {frozen} was frozen"
    finally:
        target.cluster.resume(frozen)
        if not target.cluster.is_running(victim):
            target.cluster.restart(victim, wait=False)


# ---------------------------------------------------------------------------------------------------------------- damage


@fault("damage", (0.0, 1.0), needs_whole=True)
def flipped_newest_rows(target: Target) -> Iterator[str]:
    def damage(victim: int) -> str:
        flipped = sum(map(flip_in_newest_row, replica_files(target.cluster.data_dir(victim))))
        assert flipped, f"no replica of {victim} has a row to damage"
        return f"a bit flipped in the newest row of every partition of {victim}"

    yield from damaged(target, damage)


@fault("damage", (0.0, 1.0), needs_whole=True)
def flipped_bytes(target: Target) -> Iterator[str]:
    def damage(victim: int) -> str:
        path = target.chance.choice(replica_files(target.cluster.data_dir(victim)))
        places = flip_bytes(path, target.chance, min(64, path.stat().st_size))
        return f"bits flipped in {path.name} of {victim} at {places}"

    yield from damaged(target, damage)


@fault("damage", (0.0, 1.0), needs_whole=True)
def truncated_file(target: Target) -> Iterator[str]:
    def damage(victim: int) -> str:
        path = target.chance.choice(replica_files(target.cluster.data_dir(victim)))
        return f"{path.name} of {victim} cut off at {truncate(path, target.chance)}"

    yield from damaged(target, damage)


@fault("damage", (0.0, 1.0), needs_whole=True)
def flipped_metadata(target: Target) -> Iterator[str]:
    def damage(victim: int) -> str:
        for path in replica_files(target.cluster.data_dir(victim), metadata=True):
            flip_in_newest_row(path)
        return f"a bit flipped in the newest row of the metadata of {victim}"

    yield from damaged(target, damage)


@fault("wipe", (0.0, 1.0), needs_whole=True)
def wiped_disk(target: Target) -> Iterator[str]:
    victim = target.any_broker()
    target.cluster.kill(victim)
    try:
        time.sleep(target.chance.uniform(0.0, 1.0))
        target.cluster.wipe(victim)
        yield f"{victim} has a new, empty disk"
    finally:
        target.cluster.restart(victim, wait=False)
