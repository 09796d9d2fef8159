"""Files that are missing after a second crash, and databases whose own first pages are damaged: found at the start, and said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.chaos.damage import replica_files, turn_back
from tests.chaos.fault import FaultError, Target, damaged, fault, served_or_ended

CRASHED_SECONDS = (0.5, 1.5)
"""After so much of a start it is killed again: it has begun to use its files."""


@fault("files", (0.0, 1.0), needs_whole=True)
def missing_file_after_two_kills(target: Target) -> Iterator[str]:
    """Two crashes in a row have every file looked at before it is opened; that one is missing must not end the look, or every start."""

    def damage(victim: int) -> str:
        for _ in range(2):
            target.cluster.restart(victim, wait=False)
            time.sleep(target.chance.uniform(*CRASHED_SECONDS))
            target.cluster.kill(victim)
        path = target.chance.choice(replica_files(target.cluster.data_dir(victim)))
        path.unlink()
        return f"{victim} crashed three times, then {path.name} was missing"

    yield from damaged(target, damage)


@fault("files", (0.0, 1.0), needs_whole=True)
def turned_back_replica(target: Target) -> Iterator[str]:
    """One flipped bit makes the last commit but one the last: whole in itself, and behind what the replica has acknowledged."""
    logged: dict[int, int] = {}
    group: list[str] = []

    def damage(victim: int) -> str:
        logged[victim] = len(target.cluster.logs(victim))
        path = target.chance.choice(replica_files(target.cluster.data_dir(victim)))
        turn_back(path)
        group.append(path.stem.partition("-")[0])
        return f"{path.name} of {victim} is a commit behind"

    said = next(damaging := damaged(target, damage), "")
    ((victim, before),) = logged.items()
    text = target.cluster.logs(victim)[before:]
    if not any("replica_quarantined" in line and f'"group_id": {group[0]}' in line for line in text.splitlines()):
        raise FaultError(f"{said}, and the broker does not say so")
    yield said
    for _ in damaging:
        pass


def _registry(target: Target, damage: Callable[[bytes], bytes]) -> Iterator[str]:
    """A broker without its memory ends in words. It gets it back afterwards."""
    cluster = target.cluster
    victim = target.any_broker()
    cluster.kill(victim)
    path = cluster.data_dir(victim) / "node.mdb"
    kept = path.read_bytes()
    try:
        path.write_bytes(damage(kept))
        logged = len(cluster.logs(victim))
        cluster.restart(victim, wait=False)
        if served_or_ended(target, victim, "with a damaged node.mdb"):
            raise FaultError(f"broker {victim} serves although its node.mdb was damaged")
        said = cluster.logs(victim)[logged:]
        code = cluster.exit_code(victim)
        if code < 0 or "Traceback" in said or "node.mdb" not in said:
            raise FaultError(f"broker {victim} ended with {code}, and not in words:\n{said[-2000:]}")
        yield f"node.mdb of {victim} was damaged, and it said so"
    finally:
        if cluster.is_running(victim):
            cluster.kill(victim)
        path.write_bytes(kept)
        cluster.restart(victim, wait=False)


@fault("files", (0.0, 1.0), needs_whole=True)
def truncated_registry(target: Target) -> Iterator[str]:
    """A page beyond the end of a mapped file ends the process that touches it by a signal."""
    yield from _registry(target, lambda kept: kept[: target.chance.choice((0, 100, 4096, 8192, 8192 + 4096))])


@fault("files", (0.0, 1.0), needs_whole=True)
def turned_back_registry(target: Target) -> Iterator[str]:
    def damage(kept: bytes) -> bytes:
        path = target.cluster.root / "node.mdb"
        path.write_bytes(kept)
        turn_back(path)
        return path.read_bytes()

    yield from _registry(target, damage)
