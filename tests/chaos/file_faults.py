"""Faults of files: one is missing after a second crash, or a database's own first pages are damaged. A start must find and report it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.chaos.damage import STATE_SUFFIX, log_files, replica_files, turn_back
from tests.chaos.fault import FaultError, Target, damaged, fault, served_or_ended

CRASHED_SECONDS = (0.5, 1.5)
"""How long after a start the broker is killed again: it has begun to use its files."""


@fault("files", (0.0, 1.0), needs_whole=True)
def missing_file_after_two_kills(target: Target) -> Iterator[str]:
    """After two crashes in a row every file is inspected before it is opened. A missing file must not end the inspection, and thus every start."""

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
    """Undo the last commit by one flipped bit: the file is intact, but older than the acknowledged log of the replica."""
    logged: dict[int, int] = {}
    group: list[str] = []

    def damage(victim: int) -> str:
        logged[victim] = len(target.cluster.logs(victim))
        path = target.chance.choice(log_files(target.cluster.data_dir(victim)))
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


@fault("files", (0.0, 1.0), needs_whole=True)
def turned_back_state(target: Target) -> Iterator[str]:
    """Undo the last write-back of each queue by one flipped bit. The entries after the one before are replayed, or the replica is replaced."""

    def damage(victim: int) -> str:
        paths = [path for path in replica_files(target.cluster.data_dir(victim)) if path.name.endswith(STATE_SUFFIX)]
        for path in paths:
            turn_back(path)
        return f"{len(paths)} state files of {victim} are a write-back behind"

    yield from damaged(target, damage)


def _registry(target: Target, damage: Callable[[bytes], bytes]) -> Iterator[str]:
    """Damage `node.mdb`: the broker must end with an error that names the file. Restore the file afterwards."""
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
    """Cut the registry off: the kernel kills a process that touches a mapped page beyond the end of its file."""
    yield from _registry(target, lambda kept: kept[: target.chance.choice((0, 100, 4096, 8192, 8192 + 4096))])


@fault("files", (0.0, 1.0), needs_whole=True)
def turned_back_registry(target: Target) -> Iterator[str]:
    def damage(kept: bytes) -> bytes:
        path = target.cluster.root / "node.mdb"
        path.write_bytes(kept)
        turn_back(path)
        return path.read_bytes()

    yield from _registry(target, damage)
