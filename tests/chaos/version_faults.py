"""Faults of upgrades: brokers are replaced by those of a next version and back, while the feature level stays as it is.

Clients must not notice it, and all replicas must stay equal. The next version is that of `tests/e2e/test_next_version.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.fault import Target, fault
from tests.support.e2e import broker_of_next_version

PROGRAM = Path(broker_of_next_version.__file__)


def _replace(target: Target, victim: int, *, is_next: bool) -> None:
    """Stop the broker, in order or by SIGKILL, and start it with one of the versions."""
    cluster = target.cluster
    if cluster.is_running(victim):
        cluster.stop(victim) if target.chance.random() < 0.5 else cluster.kill(victim)
    marker = broker_of_next_version.marker(cluster.data_dir(victim))
    marker.touch() if is_next else marker.unlink(missing_ok=True)
    cluster.run_program(victim, PROGRAM if is_next else None)
    cluster.restart(victim, wait=False)


def _roll(target: Target, victims: Sequence[int]) -> Iterator[str]:
    try:
        for victim in victims:
            _replace(target, victim, is_next=True)
        yield f"{', '.join(map(str, victims))} of the next version"
    finally:
        for victim in victims:
            _replace(target, victim, is_next=False)


@fault("versions", (3.0, 6.0))
def next_version_of_one(target: Target) -> Iterator[str]:
    yield from _roll(target, [target.leader_or_any()])


@fault("versions", (3.0, 6.0))
def next_version_of_two(target: Target) -> Iterator[str]:
    """Let the next version have a majority, so that it commits what the other broker must understand."""
    yield from _roll(target, target.chance.sample(target.cluster.broker_ids, 2))
